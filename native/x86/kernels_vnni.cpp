// SPDX-License-Identifier: Apache-2.0
// AVX512-VNNI: four byte products and their sum in one instruction, at 512 bits where it pays.
#include "attention.h"
#include "attention_avx512.h"
#include "elementwise_avx2.h"
#include "kernels.h"
#include "products_avx512.h"

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

}  // namespace

const Kernels& vnni_kernels() {
  static const Kernels table{"avx512vnni", matmul_512<VnniDot>, quantize, rms_norm, halves, gated,
                             attention<Attention512>, attention_shared<Attention512>, attention_parts<Attention512>,
                             merge_parts};
  return table;
}

}  // namespace headrace
