// SPDX-License-Identifier: Apache-2.0
// Attention's vectors at 512 bits. Each lane does what it does at 256 bits, in the same order, so that the two agree
// to the bit.
#pragma once
#include <cmath>

#include "vectors_avx2.h"

namespace headrace {
namespace {

// exp256 (vectors_avx2.h) in 16 lanes.
inline __m512 exp512(__m512 x) {
  const __m512 low = _mm512_set1_ps(-87.0f);
  const __mmask16 keep = _mm512_cmp_ps_mask(x, low, _CMP_NLT_UQ);
  const __m512 v = _mm512_min_ps(_mm512_set1_ps(88.0f), _mm512_max_ps(low, x));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(v, _mm512_set1_ps(1.44269504088896341f)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), v);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.0f / 720);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  const __m512i exponent = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23);
  return _mm512_maskz_mul_ps(keep, p, _mm512_castsi512_ps(exponent));
}

struct Attention512 {
  using Vector = __m512;
  using Sum = __m256;  // of weights, as at 256 bits
  static constexpr int kWidth = 16;
  static constexpr int kSums = 24;
  static constexpr int kTile = 12;

  static Vector zero() { return _mm512_setzero_ps(); }
  static Vector set1(float x) { return _mm512_set1_ps(x); }
  static Vector broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static Vector load(const float* p) { return _mm512_loadu_ps(p); }
  static Vector halves(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static void store(float* p, Vector v) { _mm512_storeu_ps(p, v); }
  static Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
  static Vector sub(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
  static Vector mul(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
  static Vector div(Vector a, Vector b) { return _mm512_div_ps(a, b); }
  static Vector max(Vector a, Vector b) { return _mm512_max_ps(a, b); }
  static Vector fmadd(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
  static Vector exp(Vector x) { return exp512(x); }
  static __m256 lower(Vector v) { return _mm512_castps512_ps256(v); }
  static __m256 upper(Vector v) { return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1)); }
  static float highest(Vector v) { return horizontal_max(_mm256_max_ps(lower(v), upper(v))); }
  static Sum add_in_order(Sum sum, Vector v) { return _mm256_add_ps(_mm256_add_ps(sum, lower(v)), upper(v)); }
  static float total(Sum sum) { return horizontal_sum(sum); }

  static Vector within(Vector s, int64_t place, int64_t first, int64_t last) {
    const __m512i at =
        _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(place)),
                         _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    const __mmask16 inside = _mm512_cmple_epi32_mask(_mm512_set1_epi32(static_cast<int>(first)), at) &
                             _mm512_cmple_epi32_mask(at, _mm512_set1_epi32(static_cast<int>(last)));
    return _mm512_mask_blend_ps(inside, _mm512_set1_ps(-INFINITY), s);
  }
};

}  // namespace
}  // namespace headrace
