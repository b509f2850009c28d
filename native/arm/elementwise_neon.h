// SPDX-License-Identifier: Apache-2.0
// Quantising, norms and gates of one token.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels.h"
#include "vectors_neon.h"

namespace headrace {
namespace {

// The largest of floats without sign, by their bits: those order as the floats do, infinity and NaN above all.
inline float largest_size(const float32x4_t (&v)[8]) {
  uint32x4_t largest = vdupq_n_u32(0);
  for (int i = 0; i < 8; ++i) largest = vmaxq_u32(largest, vreinterpretq_u32_f32(vabsq_f32(v[i])));
  const uint32_t bits = vmaxvq_u32(largest);
  float size;
  std::memcpy(&size, &bits, sizeof size);
  return size;
}

void quantize(const float* x, int64_t n, int8_t* q, float* scale, float* sum32, float* sum16) {
  for (int64_t g = 0; g < n / kGroup; ++g) {
    float32x4_t v[8];
    for (int i = 0; i < 8; ++i) v[i] = vld1q_f32(x + g * kGroup + 4 * i);
    const float top = largest_size(v);
    if (!std::isfinite(top)) {
      std::memset(q + g * kGroup, 0, kGroup);
      scale[g] = sum16[2 * g] = sum16[2 * g + 1] = sum32[g] = NAN;
      continue;
    }
    const bool live = top >= kSmallestQuantized;
    const float s = live ? top / 127.0f : 0.0f;
    const float32x4_t inverse = vdupq_n_f32(live ? 127.0f / top : 0.0f);
    int32_t sums[2];
    for (int half = 0; half < 2; ++half) {
      int16x8_t pair[2];
      for (int i = 0; i < 2; ++i) {
        const int32x4_t a = vcvtnq_s32_f32(vmulq_f32(v[4 * half + 2 * i], inverse));
        const int32x4_t b = vcvtnq_s32_f32(vmulq_f32(v[4 * half + 2 * i + 1], inverse));
        pair[i] = vcombine_s16(vqmovn_s32(a), vqmovn_s32(b));
      }
      const int8x16_t codes = vcombine_s8(vqmovn_s16(pair[0]), vqmovn_s16(pair[1]));
      vst1q_s8(q + g * kGroup + 16 * half, codes);
      sums[half] = vaddlvq_s8(codes);
    }
    scale[g] = s;
    sum16[2 * g] = s * static_cast<float>(sums[0]);
    sum16[2 * g + 1] = s * static_cast<float>(sums[1]);
    sum32[g] = s * static_cast<float>(sums[0] + sums[1]);
  }
}

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* y) {
  float32x4_t squares[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int c = 0; c < 4; ++c) {
      const float32x4_t v = vld1q_f32(x + i + 4 * c);
      squares[c] = vfmaq_f32(squares[c], v, v);
    }
  double total = horizontal_sum(vaddq_f32(vaddq_f32(squares[0], squares[2]), vaddq_f32(squares[1], squares[3])));
  for (; i < n; ++i) total += static_cast<double>(x[i]) * x[i];
  const float factor = static_cast<float>(1.0 / std::sqrt(total / static_cast<double>(n) + eps));
  i = 0;
  for (; i + 4 <= n; i += 4)
    vst1q_f32(y + i, vmulq_f32(vmulq_n_f32(vld1q_f32(x + i), factor), vld1q_f32(weight + i)));
  for (; i < n; ++i) y[i] = x[i] * factor * weight[i];
}

void halves(const float* x, int64_t n, uint16_t* y) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) vst1_u16(y + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(x + i))));
  if (i < n) reference_kernels().halves(x + i, n - i, y + i);
}

inline float32x4_t activate(float32x4_t g, Activation activation) {
  const float32x4_t one = vdupq_n_f32(1.0f);
  if (activation == Activation::Silu) return vdivq_f32(g, vaddq_f32(one, exp128(vnegq_f32(g))));
  // 0.5 (1 + tanh u) = 1 / (1 + e**(-2u))
  const float32x4_t cube = vmulq_f32(vmulq_f32(g, g), g);
  const float32x4_t u2 = vmulq_n_f32(vfmaq_f32(g, vdupq_n_f32(0.044715f), cube), -2.0f * 0.7978845608028654f);
  return vdivq_f32(g, vaddq_f32(one, exp128(u2)));
}

void gated(const float* gate, const float* up, int64_t n, Activation activation, float* y) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4)
    vst1q_f32(y + i, vmulq_f32(activate(vld1q_f32(gate + i), activation), vld1q_f32(up + i)));
  if (i == n) return;
  float tail[4] = {};
  std::copy(gate + i, gate + n, tail);
  vst1q_f32(tail, activate(vld1q_f32(tail), activation));
  for (int64_t j = i; j < n; ++j) y[j] = tail[j - i] * up[j];
}

}  // namespace
}  // namespace headrace
