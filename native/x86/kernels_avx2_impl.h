// SPDX-License-Identifier: Apache-2.0
// 256-bit kernels, written once over a Dot type that supplies the integer products: AVX2's
// multiply-add chain or VNNI's. Both are exact in integers, so the two tables agree to the bit.
// A row's arithmetic never depends on how many tokens or rows share the call.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels.h"

namespace headrace {
namespace {

inline __m256 load_halves(const void* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}

inline __m256i broadcast4(const int8_t* p) {
  int32_t v;
  std::memcpy(&v, p, 4);
  return _mm256_set1_epi32(v);
}

inline float horizontal_sum(__m256 v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

inline float horizontal_max(__m256 v) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

// The largest of floats without sign, by their bits: those order as the floats do, infinity and NaN above all.
inline float largest_float(__m256i bits) {
  __m128i s = _mm_max_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
  s = _mm_max_epi32(s, _mm_shuffle_epi32(s, _MM_SHUFFLE(1, 0, 3, 2)));
  s = _mm_max_epi32(s, _mm_shuffle_epi32(s, _MM_SHUFFLE(2, 3, 0, 1)));
  return _mm_cvtss_f32(_mm_castsi128_ps(s));
}

// e**x: x = n ln2 + r, a degree-6 polynomial for e**r, 2**n through the exponent bits; under 2 ulp.
// Exactly 0 below -87, so that a masked score weighs nothing.
inline __m256 exp256(__m256 x) {
  const __m256 low = _mm256_set1_ps(-87.0f);
  const __m256 keep = _mm256_cmp_ps(x, low, _CMP_GE_OQ);
  const __m256 v = _mm256_min_ps(_mm256_max_ps(x, low), _mm256_set1_ps(88.0f));
  const __m256 n =
      _mm256_round_ps(_mm256_mul_ps(v, _mm256_set1_ps(1.44269504088896341f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), v);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
  __m256 p = _mm256_set1_ps(1.0f / 720);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  const __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_and_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(exponent)), keep);
}

// Weights come from memory in order; asking for them this far ahead covers the wait, also over the ends of
// pages, where the hardware's own prefetch stops.
constexpr int64_t kAhead = 4096;

template <int Bytes>
inline void prefetch_ahead(const uint8_t* record) {
  for (int i = 0; i < Bytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(record + kAhead + i), _MM_HINT_T0);
}

// --- products ------------------------------------------------------------------------------------

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

// The last `count` < M + 1 tokens.
template <class Product, int M>
void run_rest(int64_t count, const Matrix& w, int64_t block, const Activations& a, int64_t t, const Destination& to) {
  if constexpr (M > 0) {
    if (count == M) return Product::template run<M>(w, block, a, t, to);
    run_rest<Product, M - 1>(count, w, block, a, t, to);
  }
}

template <class Product, int Most>
void run_products(const Matrix& w, int64_t block_begin, int64_t block_end, const Activations& a, int64_t token_begin,
                  int64_t token_end, const Destination& to) {
  // Tokens in spans whose activations stay in the second-level cache while all blocks pass over them.
  const int64_t bytes_per_token = w.num_columns * (is_quantized(w.kind) ? 2 : 4);
  const int64_t span = std::max<int64_t>(Most, (320 * 1024 / bytes_per_token) / Most * Most);
  for (int64_t begin = token_begin; begin < token_end; begin += span) {
    const int64_t end = std::min(token_end, begin + span);
    for (int64_t block = block_begin; block < block_end; ++block) {
      int64_t t = begin;
      for (; t + Most <= end; t += Most) Product::template run<Most>(w, block, a, t, to);
      run_rest<Product, Most - 1>(end - t, w, block, a, t, to);
    }
  }
}

template <class Dot>
void matmul(const Matrix& w, int64_t block_begin, int64_t block_end, const Activations& a, int64_t token_begin,
            int64_t token_end, const Destination& to) {
  auto run = run_products<Q4Product<Dot>, Dot::kTokens4>;
  switch (w.kind) {
    case Kind::Q4: break;
    case Kind::Q8: run = run_products<Q8Product<Dot, false>, Dot::kTokens8>; break;
    case Kind::Q8M: run = run_products<Q8Product<Dot, true>, Dot::kTokens8>; break;
    case Kind::Q8G16: run = run_products<Q8G16Product<Dot, false>, Dot::kTokens8>; break;
    case Kind::Q8G16M: run = run_products<Q8G16Product<Dot, true>, Dot::kTokens8>; break;
    case Kind::F32: run = run_products<FloatProduct<Kind::F32>, 2>; break;
    case Kind::F16: run = run_products<FloatProduct<Kind::F16>, 2>; break;
    case Kind::BF16: run = run_products<FloatProduct<Kind::BF16>, 2>; break;
  }
  run(w, block_begin, block_end, a, token_begin, token_end, to);
}

// --- element-wise ----------------------------------------------------------------------------------

void quantize(const float* x, int64_t n, int8_t* q, float* scale, float* sum32, float* sum16) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int64_t g = 0; g < n / kGroup; ++g) {
    __m256 v[4];
    __m256i largest = _mm256_setzero_si256();
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_loadu_ps(x + g * kGroup + 8 * i);
      largest = _mm256_max_epi32(largest, _mm256_castps_si256(_mm256_andnot_ps(sign, v[i])));
    }
    const float top = largest_float(largest);
    if (!std::isfinite(top)) {
      std::memset(q + g * kGroup, 0, kGroup);
      scale[g] = sum16[2 * g] = sum16[2 * g + 1] = sum32[g] = NAN;
      continue;
    }
    const bool live = top >= kSmallestQuantized;
    const float s = live ? top / 127.0f : 0.0f;
    const __m256 inverse = _mm256_set1_ps(live ? 127.0f / top : 0.0f);
    __m256i c[4];
    for (int i = 0; i < 4; ++i) c[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
    const __m256i sum_a = _mm256_add_epi32(c[0], c[1]), sum_b = _mm256_add_epi32(c[2], c[3]);
    // Sums of each half: add across the eight lanes of a and of b together.
    __m256i sums = _mm256_hadd_epi32(sum_a, sum_b);
    sums = _mm256_hadd_epi32(sums, sums);
    const __m128i both = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    const int32_t a = _mm_cvtsi128_si32(both), b = _mm_extract_epi32(both, 1);
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(c[0], c[1]), _mm256_packs_epi32(c[2], c[3]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + g * kGroup), _mm256_permutevar8x32_epi32(packed, order));
    scale[g] = s;
    sum16[2 * g] = s * static_cast<float>(a);
    sum16[2 * g + 1] = s * static_cast<float>(b);
    sum32[g] = s * static_cast<float>(a + b);
  }
}

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* y) {
  __m256 squares[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int c = 0; c < 2; ++c) {
      const __m256 v = _mm256_loadu_ps(x + i + 8 * c);
      squares[c] = _mm256_fmadd_ps(v, v, squares[c]);
    }
  double total = horizontal_sum(_mm256_add_ps(squares[0], squares[1]));
  for (; i < n; ++i) total += static_cast<double>(x[i]) * x[i];
  const float factor = static_cast<float>(1.0 / std::sqrt(total / static_cast<double>(n) + eps));
  const __m256 f = _mm256_set1_ps(factor);
  i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), f), _mm256_loadu_ps(weight + i)));
  for (; i < n; ++i) y[i] = x[i] * factor * weight[i];
}

inline __m256 activate(__m256 g, Activation activation) {
  const __m256 one = _mm256_set1_ps(1.0f);
  if (activation == Activation::Silu)
    return _mm256_div_ps(g, _mm256_add_ps(one, exp256(_mm256_sub_ps(_mm256_setzero_ps(), g))));
  // 0.5 (1 + tanh u) = 1 / (1 + e**(-2u))
  const __m256 cube = _mm256_mul_ps(_mm256_mul_ps(g, g), g);
  const __m256 u2 =
      _mm256_mul_ps(_mm256_set1_ps(-2.0f * 0.7978845608028654f), _mm256_fmadd_ps(_mm256_set1_ps(0.044715f), cube, g));
  return _mm256_div_ps(g, _mm256_add_ps(one, exp256(u2)));
}

void gated(const float* gate, const float* up, int64_t n, Activation activation, float* y) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(y + i, _mm256_mul_ps(activate(_mm256_loadu_ps(gate + i), activation), _mm256_loadu_ps(up + i)));
  if (i == n) return;
  alignas(32) float tail[8] = {};
  std::copy(gate + i, gate + n, tail);
  _mm256_store_ps(tail, activate(_mm256_load_ps(tail), activation));
  for (int64_t j = i; j < n; ++j) y[j] = tail[j - i] * up[j];
}

// --- attention ---------------------------------------------------------------------------------------

// One query head of a tile: its visible places [first, last], and where its sums go: K unnormalised values,
// the maximum score, the weight.
struct Query {
  const float* q;
  float* part;
  int64_t first, last;
};

constexpr int kTile = 6;  // queries at once, as many as the registers hold

// R queries against places [begin, end) of one split, 64 keys at a time with a running maximum (Milakov and
// Gimelshein 2018). Spans start at multiples of 64, and a span that a query does not see leaves it unchanged to
// the bit, so that a query's sums do not depend on the tile it falls in.
template <int R>
void attend(const AttentionShape& shape, const AttentionRow& row, const Query* queries, int32_t g, int64_t split) {
  const int64_t K = shape.head_dim, G = shape.num_kv_heads, S = kBlockSize;
  int64_t first = queries[0].first, last = queries[0].last;
  float maximum[R], total[R];
  for (int r = 0; r < R; ++r) {
    first = std::min(first, queries[r].first);
    last = std::max(last, queries[r].last);
    maximum[r] = -1e30f;
    total[r] = 0;
    std::memset(queries[r].part, 0, sizeof(float) * static_cast<size_t>(K));
  }
  first = std::max(first, split * kKeySplit);
  last = std::min<int64_t>(last, (split + 1) * kKeySplit - 1);
  alignas(32) float score[R][kKeySpan];
  const __m256 scale = _mm256_set1_ps(shape.scale);
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  for (int64_t span = first / kKeySpan * kKeySpan; span <= last; span += kKeySpan) {
    const int64_t begin = std::max(span, first / S * S);               // first block that any query sees
    const int64_t end = std::min<int64_t>(span + kKeySpan, last + 1);  // places, exclusive
    for (int r = 0; r < R; ++r)
      for (int i = 0; i < kKeySpan; i += 8) _mm256_store_ps(score[r] + i, _mm256_set1_ps(-INFINITY));
    for (int64_t at = begin; at < end; at += S) {
      const uint16_t* key = row.keys + (row.blocks[at / S] * G + g) * K * S;
      __m256 acc[R][2];
      for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = _mm256_setzero_ps();
      for (int64_t d = 0; d < K; ++d) {
        const __m256 k0 = load_halves(key + d * S), k1 = load_halves(key + d * S + 8);
        for (int r = 0; r < R; ++r) {
          const __m256 q = _mm256_broadcast_ss(queries[r].q + d);
          acc[r][0] = _mm256_fmadd_ps(q, k0, acc[r][0]);
          acc[r][1] = _mm256_fmadd_ps(q, k1, acc[r][1]);
        }
      }
      for (int r = 0; r < R; ++r) {
        const bool whole = at >= queries[r].first && at + S - 1 <= queries[r].last;
        for (int half = 0; half < 2; ++half) {
          __m256 s = _mm256_mul_ps(acc[r][half], scale);
          if (shape.softcap > 0) {
            // cap tanh(s / cap) = cap (1 - 2 / (e**(2 s / cap) + 1))
            const __m256 cap = _mm256_set1_ps(shape.softcap);
            const __m256 e = exp256(_mm256_div_ps(_mm256_add_ps(s, s), cap));
            const __m256 one = _mm256_set1_ps(1.0f);
            s = _mm256_mul_ps(cap, _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2.0f), _mm256_add_ps(e, one))));
          }
          if (!whole) {
            const __m256i place = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(at + 8 * half)), lane);
            const __m256i outside =
                _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(queries[r].first)), place),
                                _mm256_cmpgt_epi32(place, _mm256_set1_epi32(static_cast<int>(queries[r].last))));
            s = _mm256_blendv_ps(s, _mm256_set1_ps(-INFINITY), _mm256_castsi256_ps(outside));
          }
          _mm256_store_ps(score[r] + (at - span) + 8 * half, s);
        }
      }
    }
    float shrink[R];
    for (int r = 0; r < R; ++r) {
      __m256 top = _mm256_load_ps(score[r]);
      for (int i = 8; i < kKeySpan; i += 8) top = _mm256_max_ps(top, _mm256_load_ps(score[r] + i));
      const float highest = horizontal_max(top);
      const float next = highest > maximum[r] ? highest : maximum[r];
      shrink[r] = next == maximum[r] ? 1.0f : std::exp(maximum[r] - next);
      maximum[r] = next;
      __m256 sum = _mm256_setzero_ps();
      for (int i = 0; i < kKeySpan; i += 8) {
        const __m256 p = exp256(_mm256_sub_ps(_mm256_load_ps(score[r] + i), _mm256_set1_ps(next)));
        _mm256_store_ps(score[r] + i, p);
        sum = _mm256_add_ps(sum, p);
      }
      total[r] = total[r] * shrink[r] + horizontal_sum(sum);
    }
    for (int64_t d = 0; d < K; d += 16) {
      __m256 acc[R][2];
      for (int r = 0; r < R; ++r)
        for (int half = 0; half < 2; ++half)
          acc[r][half] = _mm256_mul_ps(_mm256_loadu_ps(queries[r].part + d + 8 * half), _mm256_set1_ps(shrink[r]));
      for (int64_t at = begin; at < end; at += S) {
        const uint16_t* value = row.values + (row.blocks[at / S] * G + g) * S * K + d;
        const int64_t stop = std::min<int64_t>(S, end - at);
        const int64_t offset = at - span;
        for (int64_t j = 0; j < stop; ++j) {
          const __m256 v0 = load_halves(value + j * K), v1 = load_halves(value + j * K + 8);
          for (int r = 0; r < R; ++r) {
            const __m256 p = _mm256_broadcast_ss(score[r] + offset + j);
            acc[r][0] = _mm256_fmadd_ps(p, v0, acc[r][0]);
            acc[r][1] = _mm256_fmadd_ps(p, v1, acc[r][1]);
          }
        }
      }
      for (int r = 0; r < R; ++r)
        for (int half = 0; half < 2; ++half) _mm256_storeu_ps(queries[r].part + d + 8 * half, acc[r][half]);
    }
  }
  for (int r = 0; r < R; ++r) {
    queries[r].part[K] = maximum[r];
    queries[r].part[K + 1] = total[r];
  }
}

constexpr decltype(&attend<1>) kAttend[kTile + 1] = {nullptr,   attend<1>, attend<2>, attend<3>,
                                                     attend<4>, attend<5>, attend<6>};

// The query heads of KV head g of tokens [token_begin, token_end), six at a time: visit(tile, number of queries,
// index (t * H + h) of each).
template <class Visit>
void for_tiles(const AttentionShape& shape, const AttentionRow& row, int64_t token_begin, int64_t token_end, int32_t g,
               Visit visit) {
  const int32_t share = shape.num_heads / shape.num_kv_heads;
  Query queries[kTile];
  int64_t index[kTile];
  int filled = 0;
  for (int64_t t = token_begin; t < token_end; ++t) {
    const int64_t position = row.first_position + t;
    for (int32_t h = g * share; h < (g + 1) * share; ++h) {
      index[filled] = t * shape.num_heads + h;
      queries[filled++] =
          Query{row.q + (t * shape.num_heads + h) * shape.head_dim, nullptr, shape.first_place(position), position};
      if (filled == kTile) {
        visit(queries, filled, index);
        filled = 0;
      }
    }
  }
  if (filled) visit(queries, filled, index);
}

// Adds one part to running sums of the same form.
inline void merge_into(const AttentionShape& shape, float* sums, const float* part) {
  const int64_t K = shape.head_dim;
  const float next = part[K] > sums[K] ? part[K] : sums[K];
  const float old_factor = std::exp(sums[K] - next), new_factor = std::exp(part[K] - next);
  sums[K] = next;
  sums[K + 1] = sums[K + 1] * old_factor + part[K + 1] * new_factor;
  for (int64_t d = 0; d < K; d += 8) {
    const __m256 old_sum = _mm256_mul_ps(_mm256_loadu_ps(sums + d), _mm256_set1_ps(old_factor));
    _mm256_storeu_ps(sums + d, _mm256_fmadd_ps(_mm256_loadu_ps(part + d), _mm256_set1_ps(new_factor), old_sum));
  }
}

inline void normalise(const AttentionShape& shape, const float* sums, float* out) {
  const int64_t K = shape.head_dim;
  const __m256 inverse = _mm256_set1_ps(1.0f / sums[K + 1]);
  for (int64_t d = 0; d < K; d += 8) _mm256_storeu_ps(out + d, _mm256_mul_ps(_mm256_loadu_ps(sums + d), inverse));
}

constexpr int64_t kMaxHeadDim = 512;

inline bool fits(const AttentionShape& shape) { return shape.head_dim % 16 == 0 && shape.head_dim <= kMaxHeadDim; }

void attention_parts(const AttentionShape& shape, const AttentionRow& row, int64_t token_begin, int64_t token_end,
                     int32_t g, int64_t split_begin, int64_t split_end, int64_t num_splits, float* parts) {
  if (!fits(shape))
    return reference_kernels().attention_parts(shape, row, token_begin, token_end, g, split_begin, split_end,
                                               num_splits, parts);
  for_tiles(shape, row, token_begin, token_end, g, [&](Query* queries, int count, const int64_t* index) {
    for (int64_t split = split_begin; split < split_end; ++split) {
      for (int i = 0; i < count; ++i) queries[i].part = parts + (index[i] * num_splits + split) * shape.part_floats();
      kAttend[count](shape, row, queries, g, split);
    }
  });
}

void merge_parts(const AttentionShape& shape, const float* parts, int64_t num_parts, float* out) {
  if (!fits(shape)) return reference_kernels().merge_parts(shape, parts, num_parts, out);
  float sums[kMaxHeadDim + 2];
  std::memcpy(sums, parts, sizeof(float) * static_cast<size_t>(shape.part_floats()));
  for (int64_t i = 1; i < num_parts; ++i) merge_into(shape, sums, parts + i * shape.part_floats());
  normalise(shape, sums, out);
}

void attention(const AttentionShape& shape, const AttentionRow& row, int64_t token_begin, int64_t token_end,
               int32_t g) {
  if (!fits(shape)) return reference_kernels().attention(shape, row, token_begin, token_end, g);
  float sums[kTile][kMaxHeadDim + 2], part[kTile][kMaxHeadDim + 2];
  for_tiles(shape, row, token_begin, token_end, g, [&](Query* queries, int count, const int64_t* index) {
    // A query's own splits only: merging one that it does not see would multiply by 1, but it need not be visited.
    int64_t first = queries[0].first, last = queries[0].last;
    for (int i = 1; i < count; ++i) {
      first = std::min(first, queries[i].first);
      last = std::max(last, queries[i].last);
    }
    const int64_t first_split = first / kKeySplit;
    for (int64_t split = first_split; split <= last / kKeySplit; ++split) {
      for (int i = 0; i < count; ++i) queries[i].part = split == first_split ? sums[i] : part[i];
      kAttend[count](shape, row, queries, g, split);
      if (split > first_split)
        for (int i = 0; i < count; ++i) merge_into(shape, sums[i], part[i]);
    }
    for (int i = 0; i < count; ++i) normalise(shape, sums[i], row.out + index[i] * shape.head_dim);
  });
}

}  // namespace
}  // namespace headrace
