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
  static int32x4_t by_row(int16x8_t low, int16x8_t high) { return vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)); }

  // Eight steps of u4 x s8: a 16-bit lane, one column of each step, holds at most 8 * 15 * 127 = 15240.
  static int32x4_t u4(const int8x16_t (&v)[8], const int8_t* q) {
    int16x8_t low = vdupq_n_s16(0), high = low;
    for (int j = 0; j < 8; ++j) add_step(low, high, v[j], broadcast4(q + 4 * j));
    return by_row(low, high);
  }
  // s8 x s8 two steps at a time: at most 2 * 128 * 127 = 32512.
  static int32x4_t s8(int32x4_t sum, const int8x16_t (&v)[4], const int8_t* q) {
    for (int j = 0; j < 4; j += 2) {
      int16x8_t low = vdupq_n_s16(0), high = low;
      add_step(low, high, v[j], broadcast4(q + 4 * j));
      add_step(low, high, v[j + 1], broadcast4(q + 4 * j + 4));
      sum = vaddq_s32(sum, by_row(low, high));
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
