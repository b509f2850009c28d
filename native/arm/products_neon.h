// SPDX-License-Identifier: Apache-2.0
// Products, written once over a Dot type that supplies the integer ones. Both are exact in integers, so the two tables
// agree to the bit. A token's sums never depend on the tokens that share the call.
#pragma once
#include "../simd/run_products.h"
#include "kernels.h"
#include "vectors_neon.h"

namespace headrace {
namespace {

// Sums of a block's eight rows for each token, rows 0 to 3 and rows 4 to 7, are float32x4_t [M][2].
template <int M>
inline void clear(float32x4_t (&acc)[M][2]) {
  for (int i = 0; i < M; ++i) acc[i][0] = acc[i][1] = vdupq_n_f32(0);
}

template <int M>
inline void store_block(const Matrix& w, int64_t block, int64_t t, const Destination& to,
                        const float32x4_t (&acc)[M][2]) {
  const int64_t n = block * kRowBlock;
  for (int i = 0; i < M; ++i) {
    const int64_t at = (t + i) * to.stride + n;
    float sums[kRowBlock];
    for (int half = 0; half < 2; ++half) {
      const int64_t r = 4 * half;
      float32x4_t v = vmulq_n_f32(acc[i][half], w.multiplier);
      if (n + kRowBlock > w.num_rows) {
        vst1q_f32(sums + r, v);
        continue;
      }
      if (to.bias) v = vaddq_f32(v, vld1q_f32(to.bias + n + r));
      if (to.residual) v = vaddq_f32(v, vld1q_f32(to.residual + at + r));
      vst1q_f32(to.y + at + r, v);
    }
    if (n + kRowBlock <= w.num_rows) continue;
    for (int64_t r = 0; n + r < w.num_rows; ++r) {
      float sum = sums[r];
      if (to.bias) sum += to.bias[n + r];
      if (to.residual) sum += to.residual[at + r];
      to.y[at + r] = sum;
    }
  }
}

// sum + dot * (scale * of_token), each lane a row.
inline float32x4_t add_scaled(float32x4_t sum, int32x4_t dot, float32x4_t scale, float of_token) {
  return vfmaq_f32(sum, vcvtq_f32_s32(dot), vmulq_n_f32(scale, of_token));
}

template <class Dot, int M>
void block_q4(const Matrix& w, int64_t block, const Activations& a, int64_t t, const Destination& to) {
  const int64_t K = w.num_columns, groups = K / kGroup;
  const uint8_t* record = w.data + block * w.block_bytes();
  float32x4_t acc[M][2];
  clear(acc);
  for (int64_t g = 0; g < groups; ++g, record += 160) {
    prefetch_ahead<160>(record);
    for (int half = 0; half < 2; ++half) {
      int8x16_t v[8];
      for (int j = 0; j < 4; ++j) {
        const uint8x16_t x = vld1q_u8(record + 32 + 32 * j + 16 * half);
        v[j] = vreinterpretq_s8_u8(vandq_u8(x, vdupq_n_u8(15)));
        v[j + 4] = vreinterpretq_s8_u8(vshrq_n_u8(x, 4));
      }
      const float32x4_t scale = load_halves(record + 8 * half), min = load_halves(record + 16 + 8 * half);
      for (int i = 0; i < M; ++i) {
        const int32x4_t dot = Dot::u4(v, a.q + (t + i) * K + g * kGroup);
        const int64_t at = (t + i) * groups + g;
        acc[i][half] = add_scaled(acc[i][half], dot, scale, a.scale[at]);
        acc[i][half] = vfmaq_n_f32(acc[i][half], min, a.sum32[at]);
      }
    }
  }
  store_block<M>(w, block, t, to, acc);
}

// Four steps of four columns of the rows of one half, from column 16 * part of the group on.
inline void load_steps(const uint8_t* codes, int part, int half, int8x16_t (&v)[4]) {
  for (int j = 0; j < 4; ++j)
    v[j] = vld1q_s8(reinterpret_cast<const int8_t*>(codes) + 32 * (4 * part + j) + 16 * half);
}

template <class Dot, int M, bool HasMin>
void block_q8(const Matrix& w, int64_t block, const Activations& a, int64_t t, const Destination& to) {
  const int64_t K = w.num_columns, groups = K / kGroup;
  constexpr int header = HasMin ? 32 : 16;
  const uint8_t* record = w.data + block * w.block_bytes();
  float32x4_t acc[M][2];
  clear(acc);
  for (int64_t g = 0; g < groups; ++g, record += header + 256) {
    prefetch_ahead<header + 256>(record);
    for (int half = 0; half < 2; ++half) {
      int32x4_t dot[M];
      for (int i = 0; i < M; ++i) dot[i] = vdupq_n_s32(0);
      for (int part = 0; part < 2; ++part) {
        int8x16_t v[4];
        load_steps(record + header, part, half, v);
        for (int i = 0; i < M; ++i) dot[i] = Dot::s8(dot[i], v, a.q + (t + i) * K + g * kGroup + 16 * part);
      }
      const float32x4_t scale = load_halves(record + 8 * half);
      for (int i = 0; i < M; ++i) {
        const int64_t at = (t + i) * groups + g;
        acc[i][half] = add_scaled(acc[i][half], dot[i], scale, a.scale[at]);
        if (HasMin)
          acc[i][half] = vfmaq_n_f32(acc[i][half], load_halves(record + 16 + 8 * half), a.sum32[at]);
      }
    }
  }
  store_block<M>(w, block, t, to, acc);
}

template <class Dot, int M, bool HasMin>
void block_q8g16(const Matrix& w, int64_t block, const Activations& a, int64_t t, const Destination& to) {
  const int64_t K = w.num_columns, groups = K / kGroup;
  constexpr int header = HasMin ? 64 : 32;
  const uint8_t* record = w.data + block * w.block_bytes();
  float32x4_t acc[M][2];
  clear(acc);
  for (int64_t g = 0; g < groups; ++g, record += header + 256) {
    prefetch_ahead<header + 256>(record);
    for (int part = 0; part < 2; ++part)
      for (int half = 0; half < 2; ++half) {
        int8x16_t v[4];
        load_steps(record + header, part, half, v);
        const int scales = 16 * part + 8 * half;
        for (int i = 0; i < M; ++i) {
          const int32x4_t dot = Dot::s8(vdupq_n_s32(0), v, a.q + (t + i) * K + g * kGroup + 16 * part);
          const int64_t at = (t + i) * groups + g;
          acc[i][half] = add_scaled(acc[i][half], dot, load_halves(record + scales), a.scale[at]);
          if (HasMin)
            acc[i][half] =
                vfmaq_n_f32(acc[i][half], load_halves(record + 32 + scales), a.sum16[2 * at + part]);
        }
      }
  }
  store_block<M>(w, block, t, to, acc);
}

template <Kind kind>
inline float32x4_t load_floats(const uint8_t* p) {
  if constexpr (kind == Kind::F32) return vld1q_f32(reinterpret_cast<const float*>(p));
  if constexpr (kind == Kind::F16) return load_halves(p);
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p)), 16));
}

// Four chains over k for any M, so that a token's sum does not depend on its company.
template <Kind kind, int M>
void block_float(const Matrix& w, int64_t block, const Activations& a, int64_t t, const Destination& to) {
  constexpr int64_t step = kind == Kind::F32 ? 32 : 16;
  const int64_t K = w.num_columns;
  const uint8_t* data = w.data + block * w.block_bytes();
  float32x4_t chain[4][M][2];
  for (int c = 0; c < 4; ++c) clear(chain[c]);
  auto add_column = [&](int64_t k, int c) {
    for (int half = 0; half < 2; ++half) {
      const float32x4_t v = load_floats<kind>(data + k * step + half * step / 2);
      for (int i = 0; i < M; ++i)
        chain[c][i][half] = vfmaq_n_f32(chain[c][i][half], v, a.x[(t + i) * K + k]);
    }
  };
  int64_t k = 0;
  for (; k + 4 <= K; k += 4)
    for (int c = 0; c < 4; ++c) add_column(k + c, c);
  for (; k < K; ++k) add_column(k, 0);
  float32x4_t acc[M][2];
  for (int i = 0; i < M; ++i)
    for (int half = 0; half < 2; ++half)
      acc[i][half] = vaddq_f32(vaddq_f32(chain[0][i][half], chain[1][i][half]),
                                    vaddq_f32(chain[2][i][half], chain[3][i][half]));
  store_block<M>(w, block, t, to, acc);
}

// One block of rows times M tokens, by kind.
template <class Dot>
struct Q4Product {
  template <int M>
  static void run(const Matrix& w, int64_t block, const Activations& a, int64_t t, const Destination& to) {
    block_q4<Dot, M>(w, block, a, t, to);
  }
};
template <class Dot, bool HasMin>
struct Q8Product {
  template <int M>
  static void run(const Matrix& w, int64_t block, const Activations& a, int64_t t, const Destination& to) {
    block_q8<Dot, M, HasMin>(w, block, a, t, to);
  }
};
template <class Dot, bool HasMin>
struct Q8G16Product {
  template <int M>
  static void run(const Matrix& w, int64_t block, const Activations& a, int64_t t, const Destination& to) {
    block_q8g16<Dot, M, HasMin>(w, block, a, t, to);
  }
};
template <Kind kind>
struct FloatProduct {
  template <int M>
  static void run(const Matrix& w, int64_t block, const Activations& a, int64_t t, const Destination& to) {
    block_float<kind, M>(w, block, a, t, to);
  }
};

constexpr int kIntTokens = 4, kFloatTokens = 2;  // at once, as many as the registers hold

template <class Dot>
void matmul(const Matrix& w, int64_t block_begin, int64_t block_end, const Activations& a, int64_t token_begin,
            int64_t token_end, const Destination& to) {
  auto run = reference_kernels().matmul;  // of a kind that is not below
  switch (w.kind) {
    case Kind::Q4: run = run_products<Q4Product<Dot>, kIntTokens>; break;
    case Kind::Q8: run = run_products<Q8Product<Dot, false>, kIntTokens>; break;
    case Kind::Q8M: run = run_products<Q8Product<Dot, true>, kIntTokens>; break;
    case Kind::Q8G16: run = run_products<Q8G16Product<Dot, false>, kIntTokens>; break;
    case Kind::Q8G16M: run = run_products<Q8G16Product<Dot, true>, kIntTokens>; break;
    case Kind::F32: run = run_products<FloatProduct<Kind::F32>, kFloatTokens>; break;
    case Kind::F16: run = run_products<FloatProduct<Kind::F16>, kFloatTokens>; break;
    case Kind::BF16: run = run_products<FloatProduct<Kind::BF16>, kFloatTokens>; break;
    default: break;
  }
  run(w, block_begin, block_end, a, token_begin, token_end, to);
}

}  // namespace
}  // namespace headrace
