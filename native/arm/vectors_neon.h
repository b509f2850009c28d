// SPDX-License-Identifier: Apache-2.0
// What the NEON kernels share: loads, sums across lanes, e**x.
#pragma once
#include <arm_neon.h>

#include <cstdint>

namespace headrace {
namespace {

inline float32x4_t load_halves(const void* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(static_cast<const uint16_t*>(p))));
}

// Lanes 0 and 2, 1 and 3, then the two: the order of the other tables.
inline float horizontal_sum(float32x4_t v) { return vaddv_f32(vadd_f32(vget_low_f32(v), vget_high_f32(v))); }

// e**x: x = n ln2 + r, a degree-6 polynomial for e**r, 2**n through the exponent bits; within 3 ulp.
// Exactly 0 below -87, so that a masked score weighs nothing; e**88 above 88; NaN for NaN.
inline float32x4_t exp128(float32x4_t x) {
  const float32x4_t low = vdupq_n_f32(-87.0f);
  const uint32x4_t gone = vcltq_f32(x, low);
  const float32x4_t v = vminq_f32(vmaxq_f32(x, low), vdupq_n_f32(88.0f));
  const float32x4_t n = vrndnq_f32(vmulq_f32(v, vdupq_n_f32(1.44269504088896341f)));
  float32x4_t r = vfmsq_f32(v, n, vdupq_n_f32(0.693359375f));
  r = vfmsq_f32(r, n, vdupq_n_f32(-2.12194440e-4f));
  float32x4_t p = vdupq_n_f32(1.0f / 720);
  p = vfmaq_f32(vdupq_n_f32(1.0f / 120), p, r);
  p = vfmaq_f32(vdupq_n_f32(1.0f / 24), p, r);
  p = vfmaq_f32(vdupq_n_f32(1.0f / 6), p, r);
  p = vfmaq_f32(vdupq_n_f32(0.5f), p, r);
  p = vfmaq_f32(vdupq_n_f32(1.0f), p, r);
  p = vfmaq_f32(vdupq_n_f32(1.0f), p, r);
  const int32x4_t exponent = vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23);
  const uint32x4_t power = vreinterpretq_u32_f32(vmulq_f32(p, vreinterpretq_f32_s32(exponent)));
  return vreinterpretq_f32_u32(vbicq_u32(power, gone));
}

}  // namespace
}  // namespace headrace
