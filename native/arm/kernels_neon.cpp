// SPDX-License-Identifier: Apache-2.0
// NEON as every 64-bit ARM has it: byte products widened to 16 bits, whose sums are held there as long as they fit.
#include <cstring>

#include "../simd/attention.h"
#include "attention_neon.h"
#include "elementwise_neon.h"
#include "kernels.h"
#include "products_neon.h"

namespace headrace {
namespace {

struct NeonDot {
  // sum + four columns of four rows times four numbers: two lanes a row, of two columns each.
  static void add_step(int16x8_t& low, int16x8_t& high, int8x16_t v, int8x16_t q) {
    low = vmlal_s8(low, vget_low_s8(v), vget_low_s8(q));
    high = vmlal_high_s8(high, v, q);
  }
  static int8x16_t broadcast4(const int8_t* q) {
    int32_t four;
    std::memcpy(&four, q, 4);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
  }

  // sum + four rows of codes times 16 numbers. A 16-bit lane holds one column of each step, of as many as fit.
  template <int LargestCode>
  static int32x4_t add(int32x4_t sum, const int8x16_t (&v)[4], const int8_t* q) {
    constexpr int steps = 4 * LargestCode * 127 < 32768 ? 4 : 2;
    static_assert(2 * LargestCode * 127 < 32768);
    for (int begin = 0; begin < 4; begin += steps) {
      int16x8_t low = vdupq_n_s16(0), high = low;
      for (int j = begin; j < begin + steps; ++j) add_step(low, high, v[j], broadcast4(q + 4 * j));
      sum = vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
    }
    return sum;
  }
};

}  // namespace

const Kernels& neon_kernels() {
  static const Kernels table{"neon", matmul<NeonDot>, quantize, rms_norm, halves, gated,
                             attention<AttentionNeon>, attention_shared<AttentionNeon>, attention_parts<AttentionNeon>,
                             merge_parts<AttentionNeon>};
  return table;
}

}  // namespace headrace
