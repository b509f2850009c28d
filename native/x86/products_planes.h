// SPDX-License-Identifier: Apache-2.0
// Products of kinds whose codes are fewer bits than a byte: a Form spreads a record out to bytes, written once for one
// block of 8 rows at 256 bits and two at 512. Integers are exact and each lane's float sums run alike at either width.
#pragma once
#include "codebooks.h"
#include "products_avx2.h"

namespace headrace {
namespace {

// 8 rows: bytes `at` of one record.
struct OneBlock {
  using Int = __m256i;
  using Float = __m256;
  const uint8_t* record;

  OneBlock(const Matrix& w, int64_t block) : record(w.data + block * w.block_bytes()) {}
  Int load(int at) const { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(record + at)); }
  Float halves(int at) const { return load_halves(record + at); }
  template <int Bytes>
  void prefetch() const {
    prefetch_ahead<Bytes>(record);
  }
  void advance(int bytes) { record += bytes; }

  static Int repeat(int byte) { return _mm256_set1_epi8(static_cast<char>(byte)); }
  static Float repeat(float value) { return _mm256_set1_ps(value); }
  static Float floats(Int v) { return _mm256_cvtepi32_ps(v); }
  static Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  static Int magnitude(Int v) { return _mm256_abs_epi8(v); }
  static Int values(const int8_t (&of)[16], Int places) {
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(of));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), places);
  }
  // 16-bit lanes, to higher bits; by less than 0 to lower ones.
  template <int By>
  static Int shifted(Int v) {
    if constexpr (By > 0) return _mm256_slli_epi16(v, By);
    if constexpr (By < 0) return _mm256_srli_epi16(v, -By);
    return v;
  }
  template <int M>
  static void store(const Matrix& w, int64_t block, int64_t t, const Destination& to, const Float (&sums)[M]) {
    store_block<M>(w, block, t, to, sums);
  }
};

// The codes of 16 columns, byte[row][k%4] for 4 columns each.
template <class Blocks>
using Half = typename Blocks::Int[4];

template <int which, class Blocks>
inline void spread_nibbles(const Blocks& from, int at, Half<Blocks>& v) {
  each<4>([&](auto j) { v[j] = Blocks::template shifted<-4 * which>(from.load(at + 32 * j)) & Blocks::repeat(15); });
}

// A plane's bits as bit To of v.
template <int which, int To, class Blocks>
inline void add_bits(const Blocks& from, int at, Half<Blocks>& v) {
  const typename Blocks::Int plane = from.load(at), mask = Blocks::repeat(1 << To);
  each<4>([&](auto j) { v[j] = v[j] | (Blocks::template shifted<To - 4 * which - j>(plane) & mask); });
}

// A plane's pairs of bits as bits To and To + 1 of v.
template <int which, int To, class Blocks>
inline void add_pairs(const Blocks& from, int at, Half<Blocks>& v) {
  const typename Blocks::Int plane = from.load(at + 32 * which), mask = Blocks::repeat(3 << To);
  each<4>([&](auto j) { v[j] = v[j] | (Blocks::template shifted<To - 2 * j>(plane) & mask); });
}

// What forms share. Unsigned codes of at most max_code, of which `Zero` stands for 0 where no minimums are stored.
template <Kind K, int MaxCode, int Zero>
struct UnsignedForm {
  static constexpr Kind kind = K;
  static constexpr int max_code = MaxCode, group = kGroup / num_parts(K), header = header_bytes(K);
  static constexpr bool has_min = true, is_signed = false;
  template <class Blocks>
  static typename Blocks::Float minimum(const Blocks& from, int part, typename Blocks::Float scale) {
    if constexpr (has_minimums(K)) return from.halves(16 * (num_parts(K) + part));
    return scale * Blocks::repeat(static_cast<float>(-Zero));
  }
};

template <bool HasMin>
struct Q5Planes : UnsignedForm<HasMin ? Kind::Q5M : Kind::Q5, 31, 16> {
  template <int which, class Blocks>
  static void unpack(const Blocks& from, Half<Blocks>& v) {
    constexpr int header = HasMin ? 32 : 16;
    spread_nibbles<which>(from, header, v);
    add_bits<which, 4>(from, header + 128, v);
  }
};

struct Q6Planes : UnsignedForm<Kind::Q6G16, 63, 32> {
  template <int which, class Blocks>
  static void unpack(const Blocks& from, Half<Blocks>& v) {
    spread_nibbles<which>(from, header, v);
    add_pairs<which, 4>(from, header + 128, v);
  }
};

template <Kind K, int MaxCode, int Zero>
struct PairsForm : UnsignedForm<K, MaxCode, Zero> {
  template <int which, class Blocks>
  static void unpack(const Blocks& from, Half<Blocks>& v) {
    constexpr int header = header_bytes(K);
    for (auto& codes : v) codes = Blocks::repeat(0);
    add_pairs<which, 0>(from, header, v);
    if constexpr (MaxCode > 3) add_bits<which, 2>(from, header + 64, v);
  }
};
using Q3Planes = PairsForm<Kind::Q3G16, 7, 4>;
using Q2Planes = PairsForm<Kind::Q2G16M, 3, 0>;

template <Kind K>
struct PlacesForm {
  static constexpr Kind kind = K;
  static constexpr int group = kGroup, header = header_bytes(K);
  static constexpr bool has_min = false, is_signed = true;
  // Codes of the 4 columns at 16 * which + 4 * j.
  template <int which, class Blocks>
  static typename Blocks::Int step(const Blocks& from, int j) {
    const auto places = Blocks::template shifted<-4 * which>(from.load(header + 32 * j)) & Blocks::repeat(15);
    return Blocks::values(K == Kind::IQ4 ? kIQ4Values : kDoubledE2M1, places);
  }
  template <int which, class Blocks>
  static void unpack(const Blocks& from, Half<Blocks>& v) {
    each<4>([&](auto j) { v[j] = step<which>(from, j); });
  }
};
using IQ4Places = PlacesForm<Kind::IQ4>;
using MXFP4Places = PlacesForm<Kind::MXFP4>;

// Integer products of a record's `part` with M tokens, whose q lie K apart.
template <class Form, class Dot, int part, class Blocks, int M>
inline void dots_of_form(const Blocks& from, const int8_t* q, int64_t K, typename Blocks::Int (&dot)[M]) {
  each<M>([&](auto i) { dot[i] = Blocks::repeat(0); });
  if constexpr (Form::is_signed) {
#pragma GCC unroll 1  // written out, it takes more registers than AVX2 has
    for (int j = 0; j < 4; ++j)
      each<2>([&](auto half) {
        const auto codes = Form::template step<half>(from, j), magnitude = Blocks::magnitude(codes);
        const int8_t* of_step = q + half * kHalfGroup + 4 * j;
        each<M>([&](auto i) { dot[i] = Dot::s8(dot[i], magnitude, codes, of_step + i * K); });
      });
  } else {
    each<Form::group / kHalfGroup>([&](auto at) {
      constexpr int half = part + at;
      Half<Blocks> v;
      Form::template unpack<half>(from, v);
      each<M>([&](auto i) {
        dot[i] = Dot::template few_bits<Form::max_code>(dot[i], v, q + i * K + half * kHalfGroup);
      });
    });
  }
}

template <class Form, class Blocks, class Dot, int M>
void blocks_of_form(const Matrix& w, int64_t block, const Activations& a, int64_t t, const Destination& to) {
  using Float = typename Blocks::Float;
  constexpr int parts = kGroup / Form::group, bytes = record_bytes(Form::kind);
  const int64_t K = w.num_columns, groups = K / kGroup;
  Blocks from(w, block);
  Float acc[M];
  each<M>([&](auto i) { acc[i] = Blocks::repeat(0.0f); });
  for (int64_t g = 0; g < groups; ++g, from.advance(bytes)) {
    from.template prefetch<bytes>();
    each<parts>([&](auto part) {
      typename Blocks::Int dot[M];
      dots_of_form<Form, Dot, part>(from, a.q + t * K + g * kGroup, K, dot);
      const Float scale = from.halves(16 * part);
      each<M>([&](auto i) {
        const int64_t at = (t + i) * groups + g;
        acc[i] = Blocks::fma(Blocks::floats(dot[i]), scale * Blocks::repeat(a.scale[at]), acc[i]);
        if constexpr (Form::has_min) {
          const float sum = parts == 1 ? a.sum32[at] : a.sum16[2 * at + part];
          acc[i] = Blocks::fma(Form::minimum(from, part, scale), Blocks::repeat(sum), acc[i]);
        }
      });
    });
  }
  Blocks::template store<M>(w, block, t, to, acc);
}

template <class Form, class Blocks, class Dot>
struct FormProduct {
  template <int M>
  static void run(const Matrix& w, int64_t block, const Activations& a, int64_t t, const Destination& to) {
    blocks_of_form<Form, Blocks, Dot, M>(w, block, a, t, to);
  }
};

// As matmul, of any kind.
template <class Dot>
void matmul_any(const Matrix& w, int64_t block_begin, int64_t block_end, const Activations& a, int64_t token_begin,
                int64_t token_end, const Destination& to) {
  auto run = matmul<Dot>;
  switch (w.kind) {
    case Kind::Q5: run = run_products<FormProduct<Q5Planes<false>, OneBlock, Dot>, kIntTokens>; break;
    case Kind::Q5M: run = run_products<FormProduct<Q5Planes<true>, OneBlock, Dot>, kIntTokens>; break;
    case Kind::Q6G16: run = run_products<FormProduct<Q6Planes, OneBlock, Dot>, kIntTokens>; break;
    case Kind::IQ4: run = run_products<FormProduct<IQ4Places, OneBlock, Dot>, kIntTokens>; break;
    case Kind::MXFP4: run = run_products<FormProduct<MXFP4Places, OneBlock, Dot>, kIntTokens>; break;
    case Kind::Q3G16: run = run_products<FormProduct<Q3Planes, OneBlock, Dot>, kIntTokens>; break;
    case Kind::Q2G16M: run = run_products<FormProduct<Q2Planes, OneBlock, Dot>, kIntTokens>; break;
    default: break;
  }
  run(w, block_begin, block_end, a, token_begin, token_end, to);
}

}  // namespace
}  // namespace headrace
