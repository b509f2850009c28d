// SPDX-License-Identifier: Apache-2.0
// The inner loops of attention at 512 bits: a block's 16 keys, or 16 of a value's numbers, in one register. Each lane
// does what it does at 256 bits, in the same order, so that the two agree to the bit.
#pragma once
#include "attention_avx2.h"

namespace headrace {
namespace {

inline __m512 load_16_halves(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}

struct Attention512 {
  static constexpr int kTile = 12;

  template <int R>
  static inline void dots(const Query* queries, const uint16_t* key, int64_t K, __m256 (&dot)[R][2]) {
    __m512 acc[R];
    for (int r = 0; r < R; ++r) acc[r] = _mm512_setzero_ps();
    for (int64_t d = 0; d < K; ++d) {
      const __m512 k = load_16_halves(key + d * kBlockSize);
      for (int r = 0; r < R; ++r) acc[r] = _mm512_fmadd_ps(_mm512_set1_ps(queries[r].q[d]), k, acc[r]);
    }
    for (int r = 0; r < R; ++r) {
      dot[r][0] = _mm512_castps512_ps256(acc[r]);
      dot[r][1] = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(acc[r]), 1));
    }
  }

  template <int R>
  static inline void values(const AttentionShape& shape, const AttentionRow& row, const Query* queries, int32_t g,
                            const float (*score)[kKeySpan], const float* shrink, int64_t span, int64_t begin,
                            int64_t end, int64_t d) {
    const int64_t K = shape.head_dim, G = shape.num_kv_heads, S = kBlockSize;
    __m512 acc[R];
    for (int r = 0; r < R; ++r)
      acc[r] = _mm512_mul_ps(_mm512_loadu_ps(queries[r].part + d), _mm512_set1_ps(shrink[r]));
    for (int64_t at = begin; at < end; at += S) {
      const uint16_t* value = row.values + (row.blocks[at / S] * G + g) * S * K + d;
      const int64_t stop = std::min<int64_t>(S, end - at);
      for (int64_t j = 0; j < stop; ++j) {
        const __m512 v = load_16_halves(value + j * K);
        for (int r = 0; r < R; ++r) acc[r] = _mm512_fmadd_ps(_mm512_set1_ps(score[r][at - span + j]), v, acc[r]);
      }
    }
    for (int r = 0; r < R; ++r) _mm512_storeu_ps(queries[r].part + d, acc[r]);
  }
};

}  // namespace
}  // namespace headrace
