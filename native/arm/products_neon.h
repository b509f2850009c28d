// SPDX-License-Identifier: Apache-2.0
// Products, written once over a Dot type that supplies the integer ones. Both are exact in integers, so the two tables
// agree to the bit. A token's sums never depend on the tokens that share the call.
#pragma once
#include "../simd/each.h"
#include "../simd/run_products.h"
#include "codebooks.h"
#include "kernels.h"
#include "vectors_neon.h"

namespace headrace {
namespace {

// Sums of a block's eight rows for each token, rows 0 to 3 and rows 4 to 7, are float32x4_t [M][2].
template <int M>
inline void clear(float32x4_t (&acc)[M][2]) {
  each<M>([&](auto i) { acc[i][0] = acc[i][1] = vdupq_n_f32(0); });
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

// Where codes of fewer bits than a byte have their zero.
constexpr int zero_of(Kind kind) {
  return kind == Kind::Q5 ? 16 : kind == Kind::Q6G16 ? 32 : kind == Kind::Q3G16 ? 4 : 0;
}

// The farthest that a code is from zero.
constexpr int largest_code(Kind kind) {
  switch (kind) {
    case Kind::Q4: return 15;
    case Kind::Q5: return 16;
    case Kind::Q5M: return 31;
    case Kind::Q6G16: return 32;
    case Kind::Q3G16: return 4;
    case Kind::Q2G16M: return 3;
    case Kind::MXFP4: return 12;
    default: return 128;
  }
}

// Four rows' codes of 16 columns, 4 at a time: a vector holds [row][k%4]. `half` of the rows, `part` of the columns.
using Codes = int8x16_t[4];

template <int part>
inline void add_nibbles(const uint8_t* at, uint8x16_t (&v)[4]) {
  each<4>([&](auto j) {
    const uint8x16_t x = vld1q_u8(at + 32 * j);
    v[j] = part ? vshrq_n_u8(x, 4) : vandq_u8(x, vdupq_n_u8(15));
  });
}

// A plane's bits as bit To of v.
template <int part, int To>
inline void add_bits(const uint8_t* at, uint8x16_t (&v)[4]) {
  const uint8x16_t plane = vld1q_u8(at);
  each<4>([&](auto j) {
    const uint8x16_t is_set = vtstq_u8(plane, vdupq_n_u8(1 << (4 * part + j)));
    v[j] = vorrq_u8(v[j], vandq_u8(is_set, vdupq_n_u8(1 << To)));
  });
}

// A plane's pairs of bits as bits To and To + 1 of v.
template <int part, int To>
inline void add_pairs(const uint8_t* at, uint8x16_t (&v)[4]) {
  const uint8x16_t plane = vld1q_u8(at + 32 * part);
  each<4>([&](auto j) {
    const uint8x16_t pair = vshlq_u8(plane, vdupq_n_s8(To - 2 * j));
    v[j] = vorrq_u8(v[j], vandq_u8(pair, vdupq_n_u8(3 << To)));
  });
}

template <Kind kind, int half, int part>
inline void unpack(const uint8_t* record, Codes& out) {
  const uint8_t* at = record + header_bytes(kind) + 16 * half;
  if constexpr (kind <= Kind::Q8G16M && kind != Kind::Q4) {
    each<4>([&](auto j) { out[j] = vreinterpretq_s8_u8(vld1q_u8(at + 32 * (4 * part + j))); });
    return;
  }
  uint8x16_t v[4];
  if constexpr (kind == Kind::Q3G16 || kind == Kind::Q2G16M) {
    for (auto& codes : v) codes = vdupq_n_u8(0);
    add_pairs<part, 0>(at, v);
    if constexpr (kind == Kind::Q3G16) add_bits<part, 2>(at + 64, v);
  } else {
    add_nibbles<part>(at, v);
    if constexpr (kind == Kind::Q5 || kind == Kind::Q5M) add_bits<part, 4>(at + 128, v);
    if constexpr (kind == Kind::Q6G16) add_pairs<part, 4>(at + 128, v);
  }
  each<4>([&](auto j) {
    out[j] = vsubq_s8(vreinterpretq_s8_u8(v[j]), vdupq_n_s8(zero_of(kind)));
    if constexpr (kind == Kind::IQ4) out[j] = vqtbl1q_s8(vld1q_s8(kIQ4Values), v[j]);
    if constexpr (kind == Kind::MXFP4) out[j] = vqtbl1q_s8(vld1q_s8(kDoubledE2M1), v[j]);
  });
}

template <class Dot, Kind kind, int M>
void block_quantized(const Matrix& w, int64_t block, const Activations& a, int64_t t, const Destination& to) {
  constexpr int parts = num_parts(kind), bytes = record_bytes(kind);
  const int64_t K = w.num_columns, groups = K / kGroup;
  const uint8_t* record = w.data + block * w.block_bytes();
  float32x4_t acc[M][2];
  clear(acc);
  for (int64_t g = 0; g < groups; ++g, record += bytes) {
    prefetch_ahead<bytes>(record);
    each<2>([&](auto half) {
      int32x4_t dot[M];
      each<2>([&](auto part) {
        if constexpr (part == 0 || parts == 2)
          each<M>([&](auto i) { dot[i] = vdupq_n_s32(0); });
        Codes v;
        unpack<kind, half, part>(record, v);
        const int8_t* q = a.q + t * K + g * kGroup + part * kHalfGroup;
        each<M>([&](auto i) { dot[i] = Dot::template add<largest_code(kind)>(dot[i], v, q + i * K); });
        if constexpr (part == 0 && parts == 1) return;
        constexpr int at = parts == 2 ? part : 0;  // among the record's scales
        const float32x4_t scale = load_halves(record + 16 * at + 8 * half);
        each<M>([&](auto i) {
          const int64_t group = (t + i) * groups + g;
          float32x4_t& sum = acc[i][half];
          sum = vfmaq_f32(sum, vcvtq_f32_s32(dot[i]), vmulq_n_f32(scale, a.scale[group]));
          if constexpr (has_minimums(kind))
            sum = vfmaq_n_f32(sum, load_halves(record + 16 * (parts + at) + 8 * half),
                              parts == 2 ? a.sum16[2 * group + part] : a.sum32[group]);
        });
      });
    });
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

// One block of rows times M tokens.
template <class Dot, Kind kind>
struct BlockProduct {
  template <int M>
  static void run(const Matrix& w, int64_t block, const Activations& a, int64_t t, const Destination& to) {
    if constexpr (is_quantized(kind))
      block_quantized<Dot, kind, M>(w, block, a, t, to);
    else
      block_float<kind, M>(w, block, a, t, to);
  }
};

template <class Dot, Kind kind>
void matmul_of(const Matrix& w, int64_t block_begin, int64_t block_end, const Activations& a, int64_t token_begin,
               int64_t token_end, const Destination& to) {
  constexpr int most = is_quantized(kind) ? 4 : 2;  // tokens at once, as many as the registers hold
  run_products<BlockProduct<Dot, kind>, most>(w, block_begin, block_end, a, token_begin, token_end, to);
}

template <class Dot>
void matmul(const Matrix& w, int64_t block_begin, int64_t block_end, const Activations& a, int64_t token_begin,
            int64_t token_end, const Destination& to) {
  auto run = matmul_of<Dot, Kind::Q4>;
  switch (w.kind) {
    case Kind::Q4: break;
    case Kind::Q8: run = matmul_of<Dot, Kind::Q8>; break;
    case Kind::Q8M: run = matmul_of<Dot, Kind::Q8M>; break;
    case Kind::Q8G16: run = matmul_of<Dot, Kind::Q8G16>; break;
    case Kind::Q8G16M: run = matmul_of<Dot, Kind::Q8G16M>; break;
    case Kind::Q5: run = matmul_of<Dot, Kind::Q5>; break;
    case Kind::Q5M: run = matmul_of<Dot, Kind::Q5M>; break;
    case Kind::Q6G16: run = matmul_of<Dot, Kind::Q6G16>; break;
    case Kind::IQ4: run = matmul_of<Dot, Kind::IQ4>; break;
    case Kind::MXFP4: run = matmul_of<Dot, Kind::MXFP4>; break;
    case Kind::Q3G16: run = matmul_of<Dot, Kind::Q3G16>; break;
    case Kind::Q2G16M: run = matmul_of<Dot, Kind::Q2G16M>; break;
    case Kind::F32: run = matmul_of<Dot, Kind::F32>; break;
    case Kind::F16: run = matmul_of<Dot, Kind::F16>; break;
    case Kind::BF16: run = matmul_of<Dot, Kind::BF16>; break;
  }
  run(w, block_begin, block_end, a, token_begin, token_end, to);
}

}  // namespace
}  // namespace headrace
