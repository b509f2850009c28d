// SPDX-License-Identifier: Apache-2.0
// Quantising, norms and gates of one token.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels.h"
#include "vectors_avx2.h"

namespace headrace {
namespace {

void quantize(const float* x, int64_t n, int8_t* q, float* scale, float* sum32, float* sum16) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int64_t g = 0; g < n / kGroup; ++g) {
    __m256 v[4];
    __m256i largest = _mm256_setzero_si256();
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_loadu_ps(x + g * kGroup + 8 * i);
      largest = _mm256_max_epi32(largest, _mm256_castps_si256(_mm256_andnot_ps(sign, v[i])));
    }
    const float top = largest_float(largest);
    if (!std::isfinite(top)) {
      std::memset(q + g * kGroup, 0, kGroup);
      scale[g] = sum16[2 * g] = sum16[2 * g + 1] = sum32[g] = NAN;
      continue;
    }
    const bool live = top >= kSmallestQuantized;
    const float s = live ? top / 127.0f : 0.0f;
    const __m256 inverse = _mm256_set1_ps(live ? 127.0f / top : 0.0f);
    __m256i c[4];
    for (int i = 0; i < 4; ++i) c[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
    const __m256i sum_a = _mm256_add_epi32(c[0], c[1]), sum_b = _mm256_add_epi32(c[2], c[3]);
    // Sums of each half: add across the eight lanes of a and of b together.
    __m256i sums = _mm256_hadd_epi32(sum_a, sum_b);
    sums = _mm256_hadd_epi32(sums, sums);
    const __m128i both = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    const int32_t a = _mm_cvtsi128_si32(both), b = _mm_extract_epi32(both, 1);
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(c[0], c[1]), _mm256_packs_epi32(c[2], c[3]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + g * kGroup), _mm256_permutevar8x32_epi32(packed, order));
    scale[g] = s;
    sum16[2 * g] = s * static_cast<float>(a);
    sum16[2 * g + 1] = s * static_cast<float>(b);
    sum32[g] = s * static_cast<float>(a + b);
  }
}

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* y) {
  __m256 squares[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int c = 0; c < 2; ++c) {
      const __m256 v = _mm256_loadu_ps(x + i + 8 * c);
      squares[c] = _mm256_fmadd_ps(v, v, squares[c]);
    }
  double total = horizontal_sum(_mm256_add_ps(squares[0], squares[1]));
  for (; i < n; ++i) total += static_cast<double>(x[i]) * x[i];
  const float factor = static_cast<float>(1.0 / std::sqrt(total / static_cast<double>(n) + eps));
  const __m256 f = _mm256_set1_ps(factor);
  i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), f), _mm256_loadu_ps(weight + i)));
  for (; i < n; ++i) y[i] = x[i] * factor * weight[i];
}

inline __m256 activate(__m256 g, Activation activation) {
  const __m256 one = _mm256_set1_ps(1.0f);
  if (activation == Activation::Silu)
    return _mm256_div_ps(g, _mm256_add_ps(one, exp256(_mm256_sub_ps(_mm256_setzero_ps(), g))));
  // 0.5 (1 + tanh u) = 1 / (1 + e**(-2u))
  const __m256 cube = _mm256_mul_ps(_mm256_mul_ps(g, g), g);
  const __m256 u2 =
      _mm256_mul_ps(_mm256_set1_ps(-2.0f * 0.7978845608028654f), _mm256_fmadd_ps(_mm256_set1_ps(0.044715f), cube, g));
  return _mm256_div_ps(g, _mm256_add_ps(one, exp256(u2)));
}

void halves(const float* x, int64_t n, uint16_t* y) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  if (i < n) reference_kernels().halves(x + i, n - i, y + i);
}

void gated(const float* gate, const float* up, int64_t n, Activation activation, float* y) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(y + i, _mm256_mul_ps(activate(_mm256_loadu_ps(gate + i), activation), _mm256_loadu_ps(up + i)));
  if (i == n) return;
  alignas(32) float tail[8] = {};
  std::copy(gate + i, gate + n, tail);
  _mm256_store_ps(tail, activate(_mm256_load_ps(tail), activation));
  for (int64_t j = i; j < n; ++j) y[j] = tail[j - i] * up[j];
}

}  // namespace
}  // namespace headrace
