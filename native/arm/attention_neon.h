// SPDX-License-Identifier: Apache-2.0
// Attention's vectors on NEON: two registers side by side, so that lanes add up in the order of 256-bit vectors.
#pragma once
#include <cmath>

#include "vectors_neon.h"

namespace headrace {
namespace {

struct AttentionNeon {
  struct Vector {
    float32x4_t low, high;
  };
  using Sum = Vector;  // of weights
  static constexpr int kWidth = 8;
  static constexpr int kSums = 12;
  static constexpr int kTile = 6;

  static Vector set1(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
  static Vector zero() { return set1(0.0f); }
  static Vector broadcast(const float* p) { return set1(*p); }
  static Vector load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
  static Vector halves(const uint16_t* p) {
    const float16x8_t v = vreinterpretq_f16_u16(vld1q_u16(p));
    return {vcvt_f32_f16(vget_low_f16(v)), vcvt_high_f32_f16(v)};
  }
  static void store(float* p, Vector v) {
    vst1q_f32(p, v.low);
    vst1q_f32(p + 4, v.high);
  }
  static Vector add(Vector a, Vector b) { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
  static Vector sub(Vector a, Vector b) { return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)}; }
  static Vector mul(Vector a, Vector b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
  static Vector div(Vector a, Vector b) { return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)}; }
  static Vector max(Vector a, Vector b) { return {vmaxq_f32(a.low, b.low), vmaxq_f32(a.high, b.high)}; }
  static Vector fmadd(Vector a, Vector b, Vector c) {
    return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
  }
  static Vector exp(Vector x) { return {exp128(x.low), exp128(x.high)}; }
  static float highest(Vector v) { return vmaxvq_f32(vmaxq_f32(v.low, v.high)); }
  static Sum add_in_order(Sum sum, Vector v) { return add(sum, v); }
  static float total(Sum sum) { return horizontal_sum(vaddq_f32(sum.low, sum.high)); }

  // s of places from `place` on, -infinity outside [first, last].
  static Vector within(Vector s, int64_t place, int64_t first, int64_t last) {
    return {four_within(s.low, place, first, last), four_within(s.high, place + 4, first, last)};
  }

 private:
  static float32x4_t four_within(float32x4_t s, int64_t place, int64_t first, int64_t last) {
    constexpr int32_t kPlaces[4] = {0, 1, 2, 3};
    const int32x4_t at = vaddq_s32(vdupq_n_s32(static_cast<int32_t>(place)), vld1q_s32(kPlaces));
    const uint32x4_t inside = vandq_u32(vcleq_s32(vdupq_n_s32(static_cast<int32_t>(first)), at),
                                        vcleq_s32(at, vdupq_n_s32(static_cast<int32_t>(last))));
    return vbslq_f32(inside, s, vdupq_n_f32(-INFINITY));
  }
};

}  // namespace
}  // namespace headrace
