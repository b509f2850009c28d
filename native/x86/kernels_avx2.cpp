// SPDX-License-Identifier: Apache-2.0
// AVX2: products of unsigned by signed bytes in pairs, 16-bit sums held over a whole group where they fit.
#include "../simd/attention.h"
#include "attention_avx2.h"
#include "elementwise_avx2.h"
#include "kernels.h"
#include "products_planes.h"

namespace headrace {
namespace {

struct Avx2Dot {
  // Eight 4-byte steps of u4 x s8: a 16-bit lane holds at most 8 * 2 * 15 * 127 = 30480.
  static __m256i u4(const __m256i (&v)[8], const int8_t* q) {
    __m256i sum = _mm256_maddubs_epi16(v[0], broadcast4(q));
    for (int j = 1; j < 8; ++j) sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(v[j], broadcast4(q + 4 * j)));
    return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
  }
  // Four steps of codes of at most MaxCode, summed in 16 bits as far as they fit.
  template <int MaxCode>
  static __m256i few_bits(__m256i sum, const __m256i (&v)[4], const int8_t* q) {
    constexpr bool all_fit = 4 * 2 * 127 * MaxCode < 32768;
    static_assert(2 * 2 * 127 * MaxCode < 32768);
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i pairs[4];
    each<4>([&](auto j) { pairs[j] = _mm256_maddubs_epi16(v[j], broadcast4(q + 4 * j)); });
    const __m256i first = _mm256_add_epi16(pairs[0], pairs[1]), second = _mm256_add_epi16(pairs[2], pairs[3]);
    if (all_fit) return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_add_epi16(first, second), ones));
    return _mm256_add_epi32(sum, _mm256_add_epi32(_mm256_madd_epi16(first, ones), _mm256_madd_epi16(second, ones)));
  }
  // |v| unsigned times q with v's sign: a pair is at most 2 * 128 * 127 = 32512.
  static __m256i s8(__m256i sum, __m256i magnitude, __m256i v, const int8_t* q) {
    const __m256i pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(broadcast4(q), v));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
};

}  // namespace

const Kernels& avx2_kernels() {
  static const Kernels table{"avx2", matmul_any<Avx2Dot>, quantize, rms_norm, halves, gated,
                             attention<Attention256>, attention_shared<Attention256>, attention_parts<Attention256>,
                             merge_parts<Attention256>};
  return table;
}

}  // namespace headrace
