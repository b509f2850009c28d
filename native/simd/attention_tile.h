// SPDX-License-Identifier: Apache-2.0
// The inner loops of attention: a few query heads against one span of keys, written once for vectors of any width.
#pragma once
#include <algorithm>
#include <cmath>

#include "kernels.h"

namespace headrace {
namespace {

// One query head of a tile: its visible places [first, last], and where its sums go: K unnormalised values,
// the maximum score, the weight.
struct Query {
  const float* q;
  float* part;
  int64_t first, last;
};

// The places of a span that a tile looks at: whole blocks from `begin` on, up to `end`, exclusive.
struct Span {
  int64_t start, begin, end;
};

// One KV head's blocks of a row.
struct Blocks {
  const uint16_t *keys, *values;
  const int32_t* ids;
  int64_t num_heads, g, size;  // size: K * S, of one head's keys in a block

  Blocks(const AttentionShape& shape, const AttentionRow& row, int32_t head)
      : keys(row.keys), values(row.values), ids(row.blocks), num_heads(shape.num_kv_heads), g(head),
        size(int64_t{shape.head_dim} * kBlockSize) {}
  const uint16_t* keys_at(int64_t place) const { return keys + (ids[place / kBlockSize] * num_heads + g) * size; }
  const uint16_t* values_at(int64_t place) const { return values + (ids[place / kBlockSize] * num_heads + g) * size; }
};

inline void ask_for(const void* p) { __builtin_prefetch(p); }

// sum[i][r] += x[r * stride] * v[i]. The fewer of the two are kept in registers beside the sums.
template <class Isa, int R, int N>
inline void add_products(const float* x, int64_t stride, const typename Isa::Vector (&v)[N],
                         typename Isa::Vector (&sum)[N][R]) {
  if constexpr (R <= N) {
    typename Isa::Vector factor[R];
    for (int r = 0; r < R; ++r) factor[r] = Isa::broadcast(x + r * stride);
    for (int i = 0; i < N; ++i)
      for (int r = 0; r < R; ++r) sum[i][r] = Isa::fmadd(factor[r], v[i], sum[i][r]);
  } else {
    for (int r = 0; r < R; ++r) {
      const typename Isa::Vector factor = Isa::broadcast(x + r * stride);
      for (int i = 0; i < N; ++i) sum[i][r] = Isa::fmadd(factor, v[i], sum[i][r]);
    }
  }
}

// score[r][0 .. 16 B): query r with the keys of B blocks from `at` on. q: the tile's queries, (K, R). What is wanted
// next, the blocks' values, is asked for on the way: a half-line for each number of a head.
template <class Isa, int R, int B>
inline void dots(const Blocks& blocks, const float* q, int64_t K, int64_t at, float* score) {
  constexpr int kVectors = kBlockSize / Isa::kWidth;
  typename Isa::Vector sum[B * kVectors][R];
  const uint16_t *key[B], *value[B];
  for (int b = 0; b < B; ++b) {
    key[b] = blocks.keys_at(at + b * kBlockSize);
    value[b] = blocks.values_at(at + b * kBlockSize);
  }
  for (int i = 0; i < B * kVectors; ++i)
    for (int r = 0; r < R; ++r) sum[i][r] = Isa::zero();
  for (int64_t d = 0; d < K; ++d) {
    typename Isa::Vector k[B * kVectors];
    for (int b = 0; b < B; ++b) {
      ask_for(value[b] + d * kBlockSize);
      for (int i = 0; i < kVectors; ++i)
        k[b * kVectors + i] = Isa::halves(key[b] + d * kBlockSize + i * Isa::kWidth);
    }
    add_products<Isa, R, B * kVectors>(q + d * R, 1, k, sum);
  }
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < B * kVectors; ++i) Isa::store(score + r * kKeySpan + i * Isa::kWidth, sum[i][r]);
}

template <class Isa, int R, int B>
inline void all_dots(const Blocks& blocks, const float* q, int64_t K, int64_t at, const Span& span, float* score) {
  for (; at + (B - 1) * kBlockSize < span.end; at += B * kBlockSize)
    dots<Isa, R, B>(blocks, q, K, at, score + (at - span.start));
  if constexpr (B > 1) all_dots<Isa, R, B / 2>(blocks, q, K, at, span, score);
}

// Adds the span's values, weighted, to D vectors of the sums from number d on. The next span's keys are asked for.
template <class Isa, int R, int D>
inline void values(const Blocks& blocks, const Query* queries, int64_t K, const Span& span, const float* score,
                   const float* shrink, int64_t d, const Span& next) {
  typename Isa::Vector sum[D][R];
  for (int i = 0; i < D; ++i)
    for (int r = 0; r < R; ++r)
      sum[i][r] = Isa::mul(Isa::load(queries[r].part + d + i * Isa::kWidth), Isa::set1(shrink[r]));
  for (int64_t at = span.begin; at < span.end; at += kBlockSize) {
    const uint16_t* value = blocks.values_at(at) + d;
    const int64_t stop = std::min<int64_t>(kBlockSize, span.end - at);
    const int64_t ahead = at + kKeySpan;
    const uint16_t* key = d == 0 && ahead < next.end ? blocks.keys_at(ahead) : nullptr;
    for (int64_t j = 0; j < stop; ++j) {
      if (key)
        for (int64_t line = 0; line < K; line += 32) ask_for(key + j * K + line);
      typename Isa::Vector v[D];
      for (int i = 0; i < D; ++i) v[i] = Isa::halves(value + j * K + i * Isa::kWidth);
      add_products<Isa, R, D>(score + (at - span.start) + j, kKeySpan, v, sum);
    }
  }
  for (int i = 0; i < D; ++i)
    for (int r = 0; r < R; ++r) Isa::store(queries[r].part + d + i * Isa::kWidth, sum[i][r]);
}

template <class Isa, int R, int D>
inline void all_values(const Blocks& blocks, const Query* queries, int64_t K, const Span& span, const float* score,
                       const float* shrink, int64_t d, const Span& next) {
  for (; d + D * Isa::kWidth <= K; d += D * Isa::kWidth)
    values<Isa, R, D>(blocks, queries, K, span, score, shrink, d, next);
  if constexpr (D > 1) all_values<Isa, R, D / 2>(blocks, queries, K, span, score, shrink, d, next);
}

// One query's dot products made weights: scaled, capped, masked, e to their distance from the running maximum.
// Gives the factor that the sums so far shrink by.
template <class Isa>
inline float weigh(const AttentionShape& shape, const Query& query, int64_t start, float* score) {
  using Vector = typename Isa::Vector;
  constexpr int W = Isa::kWidth;
  const bool whole = start >= query.first && start + kKeySpan - 1 <= query.last;
  const Vector scale = Isa::set1(shape.scale);
  Vector s[kKeySpan / W], top = Isa::set1(-INFINITY);
  for (int i = 0; i < kKeySpan / W; ++i) {
    s[i] = Isa::mul(Isa::load(score + i * W), scale);
    if (shape.softcap > 0) {
      // cap tanh(s / cap) = cap (1 - 2 / (e**(2 s / cap) + 1))
      const Vector cap = Isa::set1(shape.softcap), one = Isa::set1(1.0f);
      const Vector e = Isa::exp(Isa::div(Isa::add(s[i], s[i]), cap));
      s[i] = Isa::mul(cap, Isa::sub(one, Isa::div(Isa::set1(2.0f), Isa::add(e, one))));
    }
    if (!whole) s[i] = Isa::within(s[i], start + i * W, query.first, query.last);
    top = Isa::max(top, s[i]);
  }
  float& maximum = query.part[shape.head_dim];
  float& total = query.part[shape.head_dim + 1];
  const float highest = Isa::highest(top);
  const float next = highest > maximum ? highest : maximum;
  const float shrink = next == maximum ? 1.0f : std::exp(maximum - next);
  typename Isa::Sum sum{};
  for (int i = 0; i < kKeySpan / W; ++i) {
    const Vector p = Isa::exp(Isa::sub(s[i], Isa::set1(next)));
    Isa::store(score + i * W, p);
    sum = Isa::add_in_order(sum, p);
  }
  maximum = next;
  total = total * shrink + Isa::total(sum);
  return shrink;
}

// Adds a span to the sums of R queries, with a running maximum (Milakov and Gimelshein 2018). Spans start at multiples
// of 64, and one that a query does not see leaves its sums unchanged to the bit, so that they do not depend on the
// tile it falls in.
template <class Isa, int R>
void attend(const AttentionShape& shape, const Blocks& blocks, const Query* queries, const float* packed,
            const Span& span, const Span& next) {
  constexpr int kFew = std::max(1, std::min(4, Isa::kSums / R));  // vectors at once, where the tile leaves room
  constexpr int kBlocks = std::max(1, kFew * Isa::kWidth / kBlockSize);
  alignas(64) float score[R * kKeySpan];
  float shrink[R];
  all_dots<Isa, R, kBlocks>(blocks, packed, shape.head_dim, span.begin, span, score);
  for (int r = 0; r < R; ++r) shrink[r] = weigh<Isa>(shape, queries[r], span.start, score + r * kKeySpan);
  all_values<Isa, R, kFew>(blocks, queries, shape.head_dim, span, score, shrink, 0, next);
}

// attend for `count` queries, 1 to Isa::kTile.
template <class Isa, int R = Isa::kTile>
void attend_tile(const AttentionShape& shape, const Blocks& blocks, const Query* queries, int count,
                 const float* packed, const Span& span, const Span& next) {
  if constexpr (R > 1) {
    if (count < R) return attend_tile<Isa, R - 1>(shape, blocks, queries, count, packed, span, next);
  }
  attend<Isa, R>(shape, blocks, queries, packed, span, next);
}

}  // namespace
}  // namespace headrace
