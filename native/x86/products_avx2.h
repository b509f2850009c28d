// SPDX-License-Identifier: Apache-2.0
// Products, written once over a Dot type that supplies the integer ones: AVX2's multiply-add chain or VNNI's. Both are
// exact in integers, so the two tables agree to the bit. A token's sums never depend on the tokens that share the call.
#pragma once
#include "../simd/run_products.h"
#include "kernels.h"
#include "vectors_avx2.h"

namespace headrace {
namespace {

template <int M>
inline void store_block(const Matrix& w, int64_t block, int64_t t, const Destination& to, const __m256 (&acc)[M]) {
  const int64_t n = block * kRowBlock;
  const __m256 multiplier = _mm256_set1_ps(w.multiplier);
  for (int i = 0; i < M; ++i) {
    const int64_t at = (t + i) * to.stride + n;
    __m256 v = _mm256_mul_ps(acc[i], multiplier);
    if (n + kRowBlock <= w.num_rows) {
      if (to.bias) v = _mm256_add_ps(v, _mm256_loadu_ps(to.bias + n));
      if (to.residual) v = _mm256_add_ps(v, _mm256_loadu_ps(to.residual + at));
      _mm256_storeu_ps(to.y + at, v);
      continue;
    }
    alignas(32) float sums[kRowBlock];
    _mm256_store_ps(sums, v);
    for (int64_t r = 0; n + r < w.num_rows; ++r) {
      float sum = sums[r];
      if (to.bias) sum += to.bias[n + r];
      if (to.residual) sum += to.residual[at + r];
      to.y[at + r] = sum;
    }
  }
}

template <class Dot, int M>
void block_q4(const Matrix& w, int64_t block, const Activations& a, int64_t t, const Destination& to) {
  const int64_t K = w.num_columns, groups = K / kGroup;
  const uint8_t* record = w.data + block * w.block_bytes();
  const __m256i low = _mm256_set1_epi8(15);
  __m256 acc[M];
  for (int i = 0; i < M; ++i) acc[i] = _mm256_setzero_ps();
  for (int64_t g = 0; g < groups; ++g, record += 160) {
    prefetch_ahead<160>(record);
    __m256i v[8];
    for (int j = 0; j < 4; ++j) {
      const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(record + 32 + 32 * j));
      v[j] = _mm256_and_si256(x, low);
      v[j + 4] = _mm256_and_si256(_mm256_srli_epi16(x, 4), low);
    }
    const __m256 scale = load_halves(record), min = load_halves(record + 16);
    for (int i = 0; i < M; ++i) {
      const __m256 dot = _mm256_cvtepi32_ps(Dot::u4(v, a.q + (t + i) * K + g * kGroup));
      const int64_t at = (t + i) * groups + g;
      acc[i] = _mm256_fmadd_ps(dot, _mm256_mul_ps(scale, _mm256_set1_ps(a.scale[at])), acc[i]);
      acc[i] = _mm256_fmadd_ps(min, _mm256_set1_ps(a.sum32[at]), acc[i]);
    }
  }
  store_block<M>(w, block, t, to, acc);
}

template <class Dot, int M, bool HasMin>
void block_q8(const Matrix& w, int64_t block, const Activations& a, int64_t t, const Destination& to) {
  const int64_t K = w.num_columns, groups = K / kGroup;
  constexpr int header = HasMin ? 32 : 16;
  const uint8_t* record = w.data + block * w.block_bytes();
  __m256 acc[M];
  for (int i = 0; i < M; ++i) acc[i] = _mm256_setzero_ps();
  for (int64_t g = 0; g < groups; ++g, record += header + 256) {
    prefetch_ahead<header + 256>(record);
    __m256i dot[M];
    for (int i = 0; i < M; ++i) dot[i] = _mm256_setzero_si256();
    for (int j = 0; j < 8; ++j) {
      const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(record + header + 32 * j));
      const __m256i magnitude = _mm256_abs_epi8(v);
      for (int i = 0; i < M; ++i)
        dot[i] = Dot::s8(dot[i], magnitude, v, a.q + (t + i) * K + g * kGroup + 4 * j);
    }
    const __m256 scale = load_halves(record);
    for (int i = 0; i < M; ++i) {
      const int64_t at = (t + i) * groups + g;
      acc[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[i]), _mm256_mul_ps(scale, _mm256_set1_ps(a.scale[at])), acc[i]);
      if (HasMin) acc[i] = _mm256_fmadd_ps(load_halves(record + 16), _mm256_set1_ps(a.sum32[at]), acc[i]);
    }
  }
  store_block<M>(w, block, t, to, acc);
}

template <class Dot, int M, bool HasMin>
void block_q8g16(const Matrix& w, int64_t block, const Activations& a, int64_t t, const Destination& to) {
  const int64_t K = w.num_columns, groups = K / kGroup;
  constexpr int header = HasMin ? 64 : 32;
  const uint8_t* record = w.data + block * w.block_bytes();
  __m256 acc[M];
  for (int i = 0; i < M; ++i) acc[i] = _mm256_setzero_ps();
  for (int64_t g = 0; g < groups; ++g, record += header + 256) {
    prefetch_ahead<header + 256>(record);
    for (int part = 0; part < 2; ++part) {
      __m256i dot[M];
      for (int i = 0; i < M; ++i) dot[i] = _mm256_setzero_si256();
      for (int j = 4 * part; j < 4 * part + 4; ++j) {
        const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(record + header + 32 * j));
        const __m256i magnitude = _mm256_abs_epi8(v);
        for (int i = 0; i < M; ++i)
          dot[i] = Dot::s8(dot[i], magnitude, v, a.q + (t + i) * K + g * kGroup + 4 * j);
      }
      const __m256 scale = load_halves(record + 16 * part);
      for (int i = 0; i < M; ++i) {
        const int64_t at = (t + i) * groups + g;
        acc[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[i]), _mm256_mul_ps(scale, _mm256_set1_ps(a.scale[at])), acc[i]);
        if (HasMin)
          acc[i] = _mm256_fmadd_ps(load_halves(record + 32 + 16 * part), _mm256_set1_ps(a.sum16[2 * at + part]), acc[i]);
      }
    }
  }
  store_block<M>(w, block, t, to, acc);
}

template <Kind kind>
inline __m256 load_floats(const uint8_t* p) {
  if constexpr (kind == Kind::F32) return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  if constexpr (kind == Kind::F16) return load_halves(p);
  const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

// Four chains over k for any M, so that a token's sum does not depend on its company.
template <Kind kind, int M>
void block_float(const Matrix& w, int64_t block, const Activations& a, int64_t t, const Destination& to) {
  constexpr int64_t step = kind == Kind::F32 ? 32 : 16;
  const int64_t K = w.num_columns;
  const uint8_t* data = w.data + block * w.block_bytes();
  __m256 chain[M][4];
  for (int i = 0; i < M; ++i)
    for (int c = 0; c < 4; ++c) chain[i][c] = _mm256_setzero_ps();
  int64_t k = 0;
  for (; k + 4 <= K; k += 4)
    for (int c = 0; c < 4; ++c) {
      const __m256 v = load_floats<kind>(data + (k + c) * step);
      for (int i = 0; i < M; ++i)
        chain[i][c] = _mm256_fmadd_ps(v, _mm256_set1_ps(a.x[(t + i) * K + k + c]), chain[i][c]);
    }
  for (; k < K; ++k) {
    const __m256 v = load_floats<kind>(data + k * step);
    for (int i = 0; i < M; ++i) chain[i][0] = _mm256_fmadd_ps(v, _mm256_set1_ps(a.x[(t + i) * K + k]), chain[i][0]);
  }
  __m256 acc[M];
  for (int i = 0; i < M; ++i)
    acc[i] = _mm256_add_ps(_mm256_add_ps(chain[i][0], chain[i][1]), _mm256_add_ps(chain[i][2], chain[i][3]));
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
  auto run = run_products<Q4Product<Dot>, kIntTokens>;
  switch (w.kind) {
    case Kind::Q4: break;
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
