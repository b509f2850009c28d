// SPDX-License-Identifier: Apache-2.0
// NEON with dot products (ARMv8.2 and later): four byte products of four rows and their sums in one instruction.
#include "kernels.h"
#include "products_neon.h"

namespace headrace {
namespace {

struct SdotDot {
  // sum + four rows of codes times 16 numbers.
  template <int LargestCode>
  static int32x4_t add(int32x4_t sum, const int8x16_t (&v)[4], const int8_t* q) {
    const int8x16_t numbers = vld1q_s8(q);
    sum = vdotq_laneq_s32(sum, v[0], numbers, 0);
    sum = vdotq_laneq_s32(sum, v[1], numbers, 1);
    sum = vdotq_laneq_s32(sum, v[2], numbers, 2);
    return vdotq_laneq_s32(sum, v[3], numbers, 3);
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
