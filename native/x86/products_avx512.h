// SPDX-License-Identifier: Apache-2.0
// Products of weights of few bits at 512 bits: two blocks of 8 rows side by side, so that one broadcast of activations
// serves 16 rows. Integers are exact and each lane's float sums run as at 256 bits, so the tables agree to the bit.
#pragma once
#include "products_planes.h"

namespace headrace {
namespace {

struct VnniDot {
  static __m256i u4(const __m256i (&v)[8], const int8_t* q) {
    __m256i even = _mm256_setzero_si256(), odd = _mm256_setzero_si256();
    for (int j = 0; j < 8; j += 2) {
      even = _mm256_dpbusd_epi32(even, v[j], broadcast4(q + 4 * j));
      odd = _mm256_dpbusd_epi32(odd, v[j + 1], broadcast4(q + 4 * j + 4));
    }
    return _mm256_add_epi32(even, odd);
  }
  template <int MaxCode>
  static __m256i few_bits(__m256i sum, const __m256i (&v)[4], const int8_t* q) {
    each<4>([&](auto j) { sum = _mm256_dpbusd_epi32(sum, v[j], broadcast4(q + 4 * j)); });
    return sum;
  }
  static __m256i s8(__m256i sum, __m256i magnitude, __m256i v, const int8_t* q) {
    return _mm256_dpbusd_epi32(sum, magnitude, _mm256_sign_epi8(broadcast4(q), v));
  }
};

inline __m512i two_loads(const uint8_t* first, const uint8_t* second) {
  const __m512i low = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(first)));
  return _mm512_inserti64x4(low, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(second)), 1);
}

inline __m512 two_halves(const uint8_t* first, const uint8_t* second) {
  const __m256i low = _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(first)));
  return _mm512_cvtph_ps(
      _mm256_inserti128_si256(low, _mm_loadu_si128(reinterpret_cast<const __m128i*>(second)), 1));
}

inline __m512i broadcast4_512(const int8_t* p) {
  int32_t v;
  std::memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}

// As OneBlock, 8 rows of each of two blocks.
struct TwoBlocks {
  using Int = __m512i;
  using Float = __m512;
  const uint8_t *first, *second;

  TwoBlocks(const uint8_t* first, const uint8_t* second) : first(first), second(second) {}
  TwoBlocks(const Matrix& w, int64_t block)
      : first(w.data + block * w.block_bytes()), second(first + w.block_bytes()) {}
  Int load(int at) const { return two_loads(first + at, second + at); }
  Float halves(int at) const { return two_halves(first + at, second + at); }
  template <int Bytes>
  void prefetch() const {
    prefetch_ahead<Bytes>(first);
    prefetch_ahead<Bytes>(second);
  }
  void advance(int bytes) { first += bytes, second += bytes; }

  static Int repeat(int byte) { return _mm512_set1_epi8(static_cast<char>(byte)); }
  static Float repeat(float value) { return _mm512_set1_ps(value); }
  static Float floats(Int v) { return _mm512_cvtepi32_ps(v); }
  static Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static Int magnitude(Int v) { return _mm512_abs_epi8(v); }
  static Int values(const int8_t (&of)[16], Int places) {
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(of));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), places);
  }
  template <int By>
  static Int shifted(Int v) {
    if constexpr (By > 0) return _mm512_slli_epi16(v, By);
    if constexpr (By < 0) return _mm512_srli_epi16(v, -By);
    return v;
  }
  template <int M>
  static void store(const Matrix& w, int64_t block, int64_t t, const Destination& to, const Float (&sums)[M]) {
    __m256 half[M];
    each<M>([&](auto i) { half[i] = _mm512_castps512_ps256(sums[i]); });
    store_block<M>(w, block, t, to, half);
    each<M>([&](auto i) { half[i] = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(sums[i]), 1)); });
    store_block<M>(w, block + 1, t, to, half);
  }
};

struct VnniDot512 {
  template <int MaxCode>
  static __m512i few_bits(__m512i sum, const __m512i (&v)[4], const int8_t* q) {
    each<4>([&](auto j) { sum = _mm512_dpbusd_epi32(sum, v[j], broadcast4_512(q + 4 * j)); });
    return sum;
  }
  static __m512i s8(__m512i sum, __m512i magnitude, __m512i v, const int8_t* q) {
    const __m512i four = broadcast4_512(q);
    const __m512i turned = _mm512_mask_sub_epi8(four, _mm512_movepi8_mask(v), _mm512_setzero_si512(), four);
    return _mm512_dpbusd_epi32(sum, magnitude, turned);
  }
};

// Rows of blocks `block` and `block + 1` for M tokens.
template <int M>
void two_blocks_q4(const Matrix& w, int64_t block, const Activations& a, int64_t t, const Destination& to) {
  const int64_t K = w.num_columns, groups = K / kGroup;
  const uint8_t* first = w.data + block * w.block_bytes();
  const uint8_t* second = first + w.block_bytes();
  const __m512i low = _mm512_set1_epi8(15);
  __m512 acc[M];
  for (int i = 0; i < M; ++i) acc[i] = _mm512_setzero_ps();
  for (int64_t g = 0; g < groups; ++g, first += 160, second += 160) {
    prefetch_ahead<160>(first);
    prefetch_ahead<160>(second);
    __m512i v[8];
    for (int j = 0; j < 4; ++j) {
      const __m512i x = two_loads(first + 32 + 32 * j, second + 32 + 32 * j);
      v[j] = _mm512_and_si512(x, low);
      v[j + 4] = _mm512_and_si512(_mm512_srli_epi16(x, 4), low);
    }
    const __m512 scale = two_halves(first, second), min = two_halves(first + 16, second + 16);
    for (int i = 0; i < M; ++i) {
      const int8_t* q = a.q + (t + i) * K + g * kGroup;
      __m512i even = _mm512_setzero_si512(), odd = _mm512_setzero_si512();
      for (int j = 0; j < 8; j += 2) {
        even = _mm512_dpbusd_epi32(even, v[j], broadcast4_512(q + 4 * j));
        odd = _mm512_dpbusd_epi32(odd, v[j + 1], broadcast4_512(q + 4 * j + 4));
      }
      const __m512 dot = _mm512_cvtepi32_ps(_mm512_add_epi32(even, odd));
      const int64_t at = (t + i) * groups + g;
      acc[i] = _mm512_fmadd_ps(dot, _mm512_mul_ps(scale, _mm512_set1_ps(a.scale[at])), acc[i]);
      acc[i] = _mm512_fmadd_ps(min, _mm512_set1_ps(a.sum32[at]), acc[i]);
    }
  }
  TwoBlocks::store<M>(w, block, t, to, acc);
}

struct TwoBlocksQ4 {
  template <int M>
  static void run(const Matrix& w, int64_t block, const Activations& a, int64_t t, const Destination& to) {
    two_blocks_q4<M>(w, block, a, t, to);
  }
};

constexpr int kWideTokens = 8;

template <class Product>
void run_two_blocks(const Matrix& w, int64_t block_begin, int64_t block_end, const Activations& a, int64_t token_begin,
                    int64_t token_end, const Destination& to) {
  const int64_t span = std::max<int64_t>(kWideTokens, kCachedBytes / (w.num_columns * 2) / kWideTokens * kWideTokens);
  for (int64_t begin = token_begin; begin < token_end; begin += span) {
    const int64_t end = std::min(token_end, begin + span);
    for (int64_t block = block_begin; block < block_end; block += 2) {
      int64_t t = begin;
      for (; t + kWideTokens <= end; t += kWideTokens) Product::template run<kWideTokens>(w, block, a, t, to);
      run_rest<Product, kWideTokens - 1>(end - t, w, block, a, t, to);
    }
  }
}

template <class Form>
using TwoBlocksProduct = FormProduct<Form, TwoBlocks, VnniDot512>;

// As matmul_any<VnniDot>, most kinds two blocks at a time. One token alone is bound by memory, which is best read in
// one run.
void matmul_512(const Matrix& w, int64_t block_begin, int64_t block_end, const Activations& a, int64_t token_begin,
                int64_t token_end, const Destination& to) {
  auto run = matmul_any<VnniDot>;
  if (token_end - token_begin < 2) return run(w, block_begin, block_end, a, token_begin, token_end, to);
  switch (w.kind) {
    case Kind::Q4: run = run_two_blocks<TwoBlocksQ4>; break;
    case Kind::Q5: run = run_two_blocks<TwoBlocksProduct<Q5Planes<false>>>; break;
    case Kind::Q5M: run = run_two_blocks<TwoBlocksProduct<Q5Planes<true>>>; break;
    case Kind::Q6G16: run = run_two_blocks<TwoBlocksProduct<Q6Planes>>; break;
    case Kind::IQ4: run = run_two_blocks<TwoBlocksProduct<IQ4Places>>; break;
    case Kind::MXFP4: run = run_two_blocks<TwoBlocksProduct<MXFP4Places>>; break;
    case Kind::Q3G16: run = run_two_blocks<TwoBlocksProduct<Q3Planes>>; break;
    case Kind::Q2G16M: run = run_two_blocks<TwoBlocksProduct<Q2Planes>>; break;
    default: break;
  }
  const int64_t even_end = block_begin + (block_end - block_begin) / 2 * 2;
  run(w, block_begin, even_end, a, token_begin, token_end, to);
  if (even_end < block_end) matmul_any<VnniDot>(w, even_end, block_end, a, token_begin, token_end, to);
}

}  // namespace
}  // namespace headrace
