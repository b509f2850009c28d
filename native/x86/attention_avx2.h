// SPDX-License-Identifier: Apache-2.0
// Attention over paged keys and values in one pass, a few queries at a time, and its merging where keys are split.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels.h"
#include "vectors_avx2.h"

namespace headrace {
namespace {

// One query head of a tile: its visible places [first, last], and where its sums go: K unnormalised values,
// the maximum score, the weight.
struct Query {
  const float* q;
  float* part;
  int64_t first, last;
};

// What differs between vector widths: dot products of a block's keys, and weighted sums of values.
struct Attention256 {
  static constexpr int kTile = 6;  // queries at once, as many as the registers hold

  // dot[r]: query r with the 16 keys of a block, (K, S).
  template <int R>
  static inline void dots(const Query* queries, const uint16_t* key, int64_t K, __m256 (&dot)[R][2]) {
    for (int r = 0; r < R; ++r) dot[r][0] = dot[r][1] = _mm256_setzero_ps();
    for (int64_t d = 0; d < K; ++d) {
      const __m256 k0 = load_halves(key + d * kBlockSize), k1 = load_halves(key + d * kBlockSize + 8);
      for (int r = 0; r < R; ++r) {
        const __m256 q = _mm256_broadcast_ss(queries[r].q + d);
        dot[r][0] = _mm256_fmadd_ps(q, k0, dot[r][0]);
        dot[r][1] = _mm256_fmadd_ps(q, k1, dot[r][1]);
      }
    }
  }

  // The 16 sums from part[r] + d on, shrunk, and places [begin, end) of a span of scores added.
  template <int R>
  static inline void values(const AttentionShape& shape, const AttentionRow& row, const Query* queries, int32_t g,
                            const float (*score)[kKeySpan], const float* shrink, int64_t span, int64_t begin,
                            int64_t end, int64_t d) {
    const int64_t K = shape.head_dim, G = shape.num_kv_heads, S = kBlockSize;
    __m256 acc[R][2];
    for (int r = 0; r < R; ++r)
      for (int half = 0; half < 2; ++half)
        acc[r][half] = _mm256_mul_ps(_mm256_loadu_ps(queries[r].part + d + 8 * half), _mm256_set1_ps(shrink[r]));
    for (int64_t at = begin; at < end; at += S) {
      const uint16_t* value = row.values + (row.blocks[at / S] * G + g) * S * K + d;
      const int64_t stop = std::min<int64_t>(S, end - at);
      for (int64_t j = 0; j < stop; ++j) {
        const __m256 v0 = load_halves(value + j * K), v1 = load_halves(value + j * K + 8);
        for (int r = 0; r < R; ++r) {
          const __m256 p = _mm256_broadcast_ss(score[r] + at - span + j);
          acc[r][0] = _mm256_fmadd_ps(p, v0, acc[r][0]);
          acc[r][1] = _mm256_fmadd_ps(p, v1, acc[r][1]);
        }
      }
    }
    for (int r = 0; r < R; ++r)
      for (int half = 0; half < 2; ++half) _mm256_storeu_ps(queries[r].part + d + 8 * half, acc[r][half]);
  }
};

// Scores of query r against the block's places from `at` on, from its dot products.
inline void store_scores(const AttentionShape& shape, const Query& query, int64_t at, const __m256 (&dot)[2],
                         float* score) {
  const __m256 scale = _mm256_set1_ps(shape.scale);
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const bool whole = at >= query.first && at + kBlockSize - 1 <= query.last;
  for (int half = 0; half < 2; ++half) {
    __m256 s = _mm256_mul_ps(dot[half], scale);
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
          _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(query.first)), place),
                          _mm256_cmpgt_epi32(place, _mm256_set1_epi32(static_cast<int>(query.last))));
      s = _mm256_blendv_ps(s, _mm256_set1_ps(-INFINITY), _mm256_castsi256_ps(outside));
    }
    _mm256_store_ps(score + 8 * half, s);
  }
}

// Places of one split that are summed up at once. Not from the split's beginning: the parts hold what is before.
struct Places {
  int64_t split, begin, end;
  bool goes_on() const { return begin > split * kKeySplit; }
};

inline Places all_of(int64_t split) { return {split, split * kKeySplit, (split + 1) * kKeySplit}; }

// R queries against one split, 64 keys at a time with a running maximum (Milakov and Gimelshein 2018). Spans start
// at multiples of 64, and a span that a query does not see leaves it unchanged to the bit, so that a query's sums
// do not depend on the tile it falls in, nor on where its places are cut at multiples of 64.
template <class Isa, int R>
void attend(const AttentionShape& shape, const AttentionRow& row, const Query* queries, int32_t g,
            const Places& places) {
  const int64_t K = shape.head_dim, G = shape.num_kv_heads, S = kBlockSize;
  int64_t first = queries[0].first, last = queries[0].last;
  float maximum[R], total[R];
  for (int r = 0; r < R; ++r) {
    first = std::min(first, queries[r].first);
    last = std::max(last, queries[r].last);
    maximum[r] = places.goes_on() ? queries[r].part[K] : -1e30f;
    total[r] = places.goes_on() ? queries[r].part[K + 1] : 0;
    if (!places.goes_on()) std::memset(queries[r].part, 0, sizeof(float) * static_cast<size_t>(K));
  }
  first = std::max(first, places.begin);
  last = std::min<int64_t>(last, places.end - 1);
  alignas(64) float score[R][kKeySpan];
  for (int64_t span = first / kKeySpan * kKeySpan; span <= last; span += kKeySpan) {
    const int64_t begin = std::max(span, first / S * S);               // first block that any query sees
    const int64_t end = std::min<int64_t>(span + kKeySpan, last + 1);  // places, exclusive
    for (int r = 0; r < R; ++r)
      for (int i = 0; i < kKeySpan; i += 8) _mm256_store_ps(score[r] + i, _mm256_set1_ps(-INFINITY));
    for (int64_t at = begin; at < end; at += S) {
      __m256 dot[R][2];
      Isa::template dots<R>(queries, row.keys + (row.blocks[at / S] * G + g) * K * S, K, dot);
      for (int r = 0; r < R; ++r) store_scores(shape, queries[r], at, dot[r], score[r] + (at - span));
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
    for (int64_t d = 0; d < K; d += 16)
      Isa::template values<R>(shape, row, queries, g, score, shrink, span, begin, end, d);
  }
  for (int r = 0; r < R; ++r) {
    queries[r].part[K] = maximum[r];
    queries[r].part[K + 1] = total[r];
  }
}

// attend for `count` queries, 1 to Isa::kTile.
template <class Isa, int R = Isa::kTile>
void attend_tile(const AttentionShape& shape, const AttentionRow& row, const Query* queries, int count, int32_t g,
                 const Places& places) {
  if constexpr (R > 1) {
    if (count < R) return attend_tile<Isa, R - 1>(shape, row, queries, count, g, places);
  }
  attend<Isa, R>(shape, row, queries, g, places);
}

// The query heads of KV head g of tokens [token_begin, token_end), a tile at a time: visit(tile, number of queries,
// index (t * H + h) of each).
template <class Isa, class Visit>
void for_tiles(const AttentionShape& shape, const AttentionRow& row, int64_t token_begin, int64_t token_end, int32_t g,
               Visit visit) {
  const int32_t share = shape.num_heads / shape.num_kv_heads;
  Query queries[Isa::kTile];
  int64_t index[Isa::kTile];
  int filled = 0;
  for (int64_t t = token_begin; t < token_end; ++t) {
    const int64_t position = row.first_position + t;
    for (int32_t h = g * share; h < (g + 1) * share; ++h) {
      index[filled] = t * shape.num_heads + h;
      queries[filled++] =
          Query{row.q + (t * shape.num_heads + h) * shape.head_dim, nullptr, shape.first_place(position), position};
      if (filled == Isa::kTile) {
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

template <class Isa>
void attention_parts(const AttentionShape& shape, const AttentionRow& row, int64_t token_begin, int64_t token_end,
                     int32_t g, int64_t split_begin, int64_t split_end, int64_t num_splits, float* parts) {
  if (!fits(shape))
    return reference_kernels().attention_parts(shape, row, token_begin, token_end, g, split_begin, split_end,
                                               num_splits, parts);
  for_tiles<Isa>(shape, row, token_begin, token_end, g, [&](Query* queries, int count, const int64_t* index) {
    for (int64_t split = split_begin; split < split_end; ++split) {
      for (int i = 0; i < count; ++i) queries[i].part = parts + (index[i] * num_splits + split) * shape.part_floats();
      attend_tile<Isa>(shape, row, queries, count, g, all_of(split));
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

// Adds splits [begin, end) to each query's sums, one split after another; `empty`: there are no sums yet. A split that
// a query does not see leaves its sums as they are.
template <class Isa>
void sum_splits(const AttentionShape& shape, const AttentionRow& row, Query* queries, int count, int32_t g,
                int64_t begin, int64_t end, bool empty, float* const* sums) {
  float part[Isa::kTile][kMaxHeadDim + 2];
  for (int64_t split = begin; split < end; ++split) {
    for (int i = 0; i < count; ++i) queries[i].part = empty ? sums[i] : part[i];
    attend_tile<Isa>(shape, row, queries, count, g, all_of(split));
    if (!empty)
      for (int i = 0; i < count; ++i) merge_into(shape, sums[i], part[i]);
    empty = false;
  }
}

// The splits that any query of a tile sees.
inline int64_t first_split(const Query* queries, int count) {
  int64_t first = queries[0].first;
  for (int i = 1; i < count; ++i) first = std::min(first, queries[i].first);
  return first / kKeySplit;
}

inline int64_t last_split(const Query* queries, int count) {
  int64_t last = queries[0].last;
  for (int i = 1; i < count; ++i) last = std::max(last, queries[i].last);
  return last / kKeySplit;
}

template <class Isa>
void attention(const AttentionShape& shape, const AttentionRow& row, int64_t token_begin, int64_t token_end,
               int32_t g) {
  if (!fits(shape)) return reference_kernels().attention(shape, row, token_begin, token_end, g);
  const int64_t F = shape.part_floats();
  const size_t bytes = sizeof(float) * static_cast<size_t>(F);
  float own[Isa::kTile][kMaxHeadDim + 2], part[Isa::kTile][kMaxHeadDim + 2];
  float* sums[Isa::kTile];
  for (int i = 0; i < Isa::kTile; ++i) sums[i] = own[i];
  for_tiles<Isa>(shape, row, token_begin, token_end, g, [&](Query* queries, int count, const int64_t* index) {
    int64_t begin = row.num_summed / kKeySplit;
    bool empty = begin == 0;
    if (!empty)
      for (int i = 0; i < count; ++i) std::memcpy(own[i], row.sums + index[i] * shape.shared_floats(), bytes);
    if (row.num_summed % kKeySplit) {  // go on with what there is of a split
      for (int i = 0; i < count; ++i) {
        queries[i].part = empty ? own[i] : part[i];
        std::memcpy(queries[i].part, row.sums + index[i] * shape.shared_floats() + F, bytes);
      }
      attend_tile<Isa>(shape, row, queries, count, g, {begin, row.num_summed, (begin + 1) * kKeySplit});
      if (!empty)
        for (int i = 0; i < count; ++i) merge_into(shape, own[i], part[i]);
      empty = false;
      ++begin;
    }
    begin = std::max(first_split(queries, count), begin);
    sum_splits<Isa>(shape, row, queries, count, g, begin, last_split(queries, count) + 1, empty, sums);
    for (int i = 0; i < count; ++i) normalise(shape, own[i], row.out + index[i] * shape.head_dim);
  });
}

// Splits outside, tiles inside: a split's keys and values stay in the cache for all of them.
template <class Isa>
void attention_shared(const AttentionShape& shape, const AttentionRow& row, const SharedQuery* queries,
                      int64_t num_queries, int32_t g, int64_t num_places) {
  if (!fits(shape)) return reference_kernels().attention_shared(shape, row, queries, num_queries, g, num_places);
  const int64_t num_splits = num_places / kKeySplit;
  for (int64_t split = 0; split * kKeySplit < num_places; ++split)
    for (int64_t begin = 0; begin < num_queries; begin += Isa::kTile) {
      const int count = static_cast<int>(std::min<int64_t>(Isa::kTile, num_queries - begin));
      Query tile[Isa::kTile];
      float* sums[Isa::kTile];
      for (int i = 0; i < count; ++i) {
        const SharedQuery& query = queries[begin + i];
        tile[i] = Query{query.q, nullptr, shape.first_place(query.position), query.position};
        sums[i] = query.sums;
      }
      if (split == num_splits) {
        for (int i = 0; i < count; ++i) tile[i].part = sums[i] + shape.part_floats();
        attend_tile<Isa>(shape, row, tile, count, g, {split, split * kKeySplit, num_places});
        continue;
      }
      // Before a window nothing is read, but that there is nothing is written once.
      if (split > 0 && split < first_split(tile, count)) continue;
      sum_splits<Isa>(shape, row, tile, count, g, split, split + 1, split == 0, sums);
    }
}

}  // namespace
}  // namespace headrace
