// SPDX-License-Identifier: Apache-2.0
// Products of bytes by dpbusd at 512 bits, in so many chains that none waits for itself.
#include <immintrin.h>

#include "../include/peak.h"

namespace headrace {
namespace {

constexpr int kChains = 12;

void run(int64_t rounds) {
  const __m512i left = _mm512_set1_epi8(3), right = _mm512_set1_epi8(-2), zero = _mm512_setzero_si512();
  // By name: GCC 12 keeps an array of them in memory.
  __m512i a = zero, b = zero, c = zero, d = zero, e = zero, f = zero, g = zero, h = zero;
  __m512i i = zero, j = zero, k = zero, l = zero;
  for (int64_t round = 0; round < rounds; ++round) {
    a = _mm512_dpbusd_epi32(a, left, right); b = _mm512_dpbusd_epi32(b, left, right);
    c = _mm512_dpbusd_epi32(c, left, right); d = _mm512_dpbusd_epi32(d, left, right);
    e = _mm512_dpbusd_epi32(e, left, right); f = _mm512_dpbusd_epi32(f, left, right);
    g = _mm512_dpbusd_epi32(g, left, right); h = _mm512_dpbusd_epi32(h, left, right);
    i = _mm512_dpbusd_epi32(i, left, right); j = _mm512_dpbusd_epi32(j, left, right);
    k = _mm512_dpbusd_epi32(k, left, right); l = _mm512_dpbusd_epi32(l, left, right);
    __asm__ volatile("" : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(f),
                     "+v"(g), "+v"(h), "+v"(i), "+v"(j), "+v"(k), "+v"(l));
  }
}

}  // namespace

const ByteChain& vnni_chain() {
  static const ByteChain chain{"dpbusd at 512 bits", kChains * 64, run};
  return chain;
}

}  // namespace headrace
