// SPDX-License-Identifier: Apache-2.0
// NEON with dot products (ARMv8.2 and later): four byte products of four rows and their sums in one instruction.
#include "kernels.h"
#include "products_neon.h"

namespace headrace {
namespace {

struct SdotDot {
  // sum + the four rows of v times four numbers, step by step.
  static int32x4_t add_steps(int32x4_t sum, const int8x16_t* v, int8x16_t q) {
    sum = vdotq_laneq_s32(sum, v[0], q, 0);
    sum = vdotq_laneq_s32(sum, v[1], q, 1);
    sum = vdotq_laneq_s32(sum, v[2], q, 2);
    return vdotq_laneq_s32(sum, v[3], q, 3);
  }
  static int32x4_t u4(const int8x16_t (&v)[8], const int8_t* q) {
    return vaddq_s32(add_steps(vdupq_n_s32(0), v, vld1q_s8(q)), add_steps(vdupq_n_s32(0), v + 4, vld1q_s8(q + 16)));
  }
  static int32x4_t s8(int32x4_t sum, const int8x16_t (&v)[4], const int8_t* q) {
    return add_steps(sum, v, vld1q_s8(q));
  }
};

}  // namespace

// All but the products is as without.
const Kernels& dotprod_kernels() {
  static const Kernels table = [] {
    Kernels kernels = neon_kernels();
    kernels.name = "dotprod";
    kernels.matmul = matmul<SdotDot>;
    return kernels;
  }();
  return table;
}

}  // namespace headrace
