// SPDX-License-Identifier: Apache-2.0
// As the 4-bit products of this table do it: eight products of bytes added in 16 bits, widened once.
#include <immintrin.h>

#include "../include/peak.h"

namespace headrace {
namespace {

constexpr int kChains = 4, kBeforeWidening = 8;

void run(int64_t rounds) {
  __m256i sum[kChains] = {}, left = _mm256_set1_epi8(3);
  const __m256i right = _mm256_set1_epi8(-2), ones = _mm256_set1_epi16(1);
  for (int64_t i = 0; i < rounds; ++i)
    for (int chain = 0; chain < kChains; ++chain) {
      __m256i wide = _mm256_maddubs_epi16(left, right);
      for (int k = 1; k < kBeforeWidening; ++k) {
        __asm__ volatile("" : "+x"(left));  // another value, for all that the compiler knows
        wide = _mm256_add_epi16(wide, _mm256_maddubs_epi16(left, right));
      }
      sum[chain] = _mm256_add_epi32(sum[chain], _mm256_madd_epi16(wide, ones));
      __asm__ volatile("" : "+x"(sum[chain]), "+x"(left));
    }
}

}  // namespace

const ByteChain& avx2_chain() {
  static const ByteChain chain{"maddubs, 8 added in 16 bits, madd, add", kChains * kBeforeWidening * 32, run};
  return chain;
}

}  // namespace headrace
