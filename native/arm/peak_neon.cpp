// SPDX-License-Identifier: Apache-2.0
// Products of bytes on ARM, by what the CPU has: smull with sadalp everywhere, sdot, smmla.
#include <arm_neon.h>

#include "../include/peak.h"

namespace headrace {
namespace {

constexpr int kChains = 12;

// Sums by name: compilers keep an array of them in memory. The last two are written as instructions, so that this
// file needs no more than the base architecture.
#define HEADRACE_SUMS                                                                              \
  const int8x16_t right = vdupq_n_s8(-2);                                                          \
  const int32x4_t zero = vdupq_n_s32(0);                                                           \
  int8x16_t left = vdupq_n_s8(3);                                                                  \
  int32x4_t a = zero, b = zero, c = zero, d = zero, e = zero, f = zero, g = zero, h = zero;        \
  int32x4_t i = zero, j = zero, k = zero, l = zero
#define HEADRACE_ALL(STEP) STEP(a); STEP(b); STEP(c); STEP(d); STEP(e); STEP(f); STEP(g); STEP(h); STEP(i); STEP(j); \
  STEP(k); STEP(l)
#define HEADRACE_SMULL(sum)                                                                             \
  do {                                                                                                  \
    __asm__ volatile("" : "+w"(left), "+w"(sum));                                                       \
    sum = vpadalq_s16(sum, vmlal_high_s8(vmull_s8(vget_low_s8(left), vget_low_s8(right)), left, right)); \
  } while (0)
#define HEADRACE_SDOT(sum) \
  __asm__ volatile(".arch armv8.2-a+dotprod\n\tsdot %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(left), "w"(right))
#define HEADRACE_SMMLA(sum) \
  __asm__ volatile(".arch armv8.2-a+i8mm\n\tsmmla %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(left), "w"(right))

void run_smull(int64_t rounds) {
  HEADRACE_SUMS;
  for (int64_t round = 0; round < rounds; ++round) {
    HEADRACE_ALL(HEADRACE_SMULL);
  }
}

void run_sdot(int64_t rounds) {
  HEADRACE_SUMS;
  for (int64_t round = 0; round < rounds; ++round) {
    HEADRACE_ALL(HEADRACE_SDOT);
  }
}

void run_smmla(int64_t rounds) {
  HEADRACE_SUMS;
  for (int64_t round = 0; round < rounds; ++round) {
    HEADRACE_ALL(HEADRACE_SMMLA);
  }
}

}  // namespace

const ByteChain& neon_chain() {
  static const ByteChain chain{"smull, smlal2, sadalp", kChains * 16, run_smull};
  return chain;
}

const ByteChain& neon_dot_chain() {
  static const ByteChain chain{"sdot", kChains * 16, run_sdot};
  return chain;
}

const ByteChain& neon_i8mm_chain() {
  static const ByteChain chain{"smmla", kChains * 32, run_smmla};
  return chain;
}

}  // namespace headrace
