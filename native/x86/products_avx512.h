// SPDX-License-Identifier: Apache-2.0
// The product of 4-bit weights at 512 bits: two blocks of 8 rows side by side, so that one broadcast of activations
// serves 16 rows. Integers are exact and each lane's float sums run as at 256 bits, so the tables agree to the bit.
#pragma once
#include "products_avx2.h"

namespace headrace {
namespace {

struct VnniDot {
  static __m256i u4(const __m256i (&v)[8], const int8_t* q) {
    __m256i even = _mm256_setzero_si256(), odd = _mm256_setzero_si256();
    for (int j = 0; j < 8; j += 2) {
      even = _mm256_dpbusd_epi32(even, v[j], broadcast4(q + 4 * j));
      odd = _mm256_dpbusd_epi32(odd, v[j + 1], broadcast4(q + 4 * j + 4));
    }
    return _mm256_add_epi32(even, odd);
  }
  static __m256i s8(__m256i sum, __m256i magnitude, __m256i v, const int8_t* q) {
    return _mm256_dpbusd_epi32(sum, magnitude, _mm256_sign_epi8(broadcast4(q), v));
  }
};

inline __m512i two_loads(const uint8_t* first, const uint8_t* second) {
  const __m512i low = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(first)));
  return _mm512_inserti64x4(low, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(second)), 1);
}

inline __m512 two_halves(const uint8_t* first, const uint8_t* second) {
  const __m256i low = _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(first)));
  return _mm512_cvtph_ps(
      _mm256_inserti128_si256(low, _mm_loadu_si128(reinterpret_cast<const __m128i*>(second)), 1));
}

inline __m512i broadcast4_512(const int8_t* p) {
  int32_t v;
  std::memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}

// Rows of blocks `block` and `block + 1` for M tokens.
template <int M>
void two_blocks_q4(const Matrix& w, int64_t block, const Activations& a, int64_t t, const Destination& to) {
  const int64_t K = w.num_columns, groups = K / kGroup;
  const uint8_t* first = w.data + block * w.block_bytes();
  const uint8_t* second = first + w.block_bytes();
  const __m512i low = _mm512_set1_epi8(15);
  __m512 acc[M];
  for (int i = 0; i < M; ++i) acc[i] = _mm512_setzero_ps();
  for (int64_t g = 0; g < groups; ++g, first += 160, second += 160) {
    prefetch_ahead<160>(first);
    prefetch_ahead<160>(second);
    __m512i v[8];
    for (int j = 0; j < 4; ++j) {
      const __m512i x = two_loads(first + 32 + 32 * j, second + 32 + 32 * j);
      v[j] = _mm512_and_si512(x, low);
      v[j + 4] = _mm512_and_si512(_mm512_srli_epi16(x, 4), low);
    }
    const __m512 scale = two_halves(first, second), min = two_halves(first + 16, second + 16);
    for (int i = 0; i < M; ++i) {
      const int8_t* q = a.q + (t + i) * K + g * kGroup;
      __m512i even = _mm512_setzero_si512(), odd = _mm512_setzero_si512();
      for (int j = 0; j < 8; j += 2) {
        even = _mm512_dpbusd_epi32(even, v[j], broadcast4_512(q + 4 * j));
        odd = _mm512_dpbusd_epi32(odd, v[j + 1], broadcast4_512(q + 4 * j + 4));
      }
      const __m512 dot = _mm512_cvtepi32_ps(_mm512_add_epi32(even, odd));
      const int64_t at = (t + i) * groups + g;
      acc[i] = _mm512_fmadd_ps(dot, _mm512_mul_ps(scale, _mm512_set1_ps(a.scale[at])), acc[i]);
      acc[i] = _mm512_fmadd_ps(min, _mm512_set1_ps(a.sum32[at]), acc[i]);
    }
  }
  __m256 half[M];
  for (int i = 0; i < M; ++i) half[i] = _mm512_castps512_ps256(acc[i]);
  store_block<M>(w, block, t, to, half);
  for (int i = 0; i < M; ++i) half[i] = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(acc[i]), 1));
  store_block<M>(w, block + 1, t, to, half);
}

struct TwoBlocksQ4 {
  template <int M>
  static void run(const Matrix& w, int64_t block, const Activations& a, int64_t t, const Destination& to) {
    two_blocks_q4<M>(w, block, a, t, to);
  }
};

constexpr int kWideTokens = 8;

// As matmul<VnniDot>, 4-bit weights two blocks at a time. One token alone is bound by memory, which is read best in one run.
void matmul_512(const Matrix& w, int64_t block_begin, int64_t block_end, const Activations& a, int64_t token_begin,
                int64_t token_end, const Destination& to) {
  if (w.kind != Kind::Q4 || token_end - token_begin < 2)
    return matmul<VnniDot>(w, block_begin, block_end, a, token_begin, token_end, to);
  const int64_t span = std::max<int64_t>(kWideTokens, kCachedBytes / (w.num_columns * 2) / kWideTokens * kWideTokens);
  const int64_t even_end = block_begin + (block_end - block_begin) / 2 * 2;
  for (int64_t begin = token_begin; begin < token_end; begin += span) {
    const int64_t end = std::min(token_end, begin + span);
    for (int64_t block = block_begin; block < even_end; block += 2) {
      int64_t t = begin;
      for (; t + kWideTokens <= end; t += kWideTokens) TwoBlocksQ4::run<kWideTokens>(w, block, a, t, to);
      run_rest<TwoBlocksQ4, kWideTokens - 1>(end - t, w, block, a, t, to);
    }
  }
  if (even_end < block_end) matmul<VnniDot>(w, even_end, block_end, a, token_begin, token_end, to);
}

}  // namespace
}  // namespace headrace
