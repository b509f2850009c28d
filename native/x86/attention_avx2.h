// SPDX-License-Identifier: Apache-2.0
// Attention's vectors at 256 bits.
#pragma once
#include <cmath>

#include "vectors_avx2.h"

namespace headrace {
namespace {

struct Attention256 {
  using Vector = __m256;
  using Sum = __m256;  // of weights
  static constexpr int kWidth = 8;
  static constexpr int kSums = 12;  // sums that the registers hold beside what is added to them
  static constexpr int kTile = 6;   // queries at once

  static Vector zero() { return _mm256_setzero_ps(); }
  static Vector set1(float x) { return _mm256_set1_ps(x); }
  static Vector broadcast(const float* p) { return _mm256_broadcast_ss(p); }
  static Vector load(const float* p) { return _mm256_loadu_ps(p); }
  static Vector halves(const uint16_t* p) { return load_halves(p); }
  static void store(float* p, Vector v) { _mm256_storeu_ps(p, v); }
  static Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
  static Vector sub(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
  static Vector mul(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
  static Vector div(Vector a, Vector b) { return _mm256_div_ps(a, b); }
  static Vector max(Vector a, Vector b) { return _mm256_max_ps(a, b); }
  static Vector fmadd(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
  static Vector exp(Vector x) { return exp256(x); }
  static float highest(Vector v) { return horizontal_max(v); }
  static Sum add_in_order(Sum sum, Vector v) { return _mm256_add_ps(sum, v); }
  static float total(Sum sum) { return horizontal_sum(sum); }

  // s of places from `place` on, -infinity outside [first, last].
  static Vector within(Vector s, int64_t place, int64_t first, int64_t last) {
    const __m256i at = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(place)),
                                        _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const __m256i outside = _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(first)), at),
                                            _mm256_cmpgt_epi32(at, _mm256_set1_epi32(static_cast<int>(last))));
    return _mm256_blendv_ps(s, _mm256_set1_ps(-INFINITY), _mm256_castsi256_ps(outside));
  }
};

}  // namespace
}  // namespace headrace
