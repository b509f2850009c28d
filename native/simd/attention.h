// SPDX-License-Identifier: Apache-2.0
// Attention over paged keys and values in one pass, and its merging where keys are split or were summed up for many.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "attention_tile.h"
#include "kernels.h"

namespace headrace {
namespace {

constexpr int64_t kMaxHeadDim = 512;

inline bool fits(const AttentionShape& shape) { return shape.head_dim % 16 == 0 && shape.head_dim <= kMaxHeadDim; }

inline size_t bytes_of_part(const AttentionShape& shape) {
  return sizeof(float) * static_cast<size_t>(shape.part_floats());
}

// Query heads of one KV head that read the same blocks: a span at a time, tile after tile, so that a span's keys and
// values come from memory once for all of them. One to a thread, so that its memory is kept.
template <class Isa>
class Readers {
 public:
  static Readers& none() {
    thread_local Readers readers;
    readers.queries_.clear();
    return readers;
  }

  int64_t count() const { return static_cast<int64_t>(queries_.size()); }
  Query& operator[](int64_t i) { return queries_[static_cast<size_t>(i)]; }

  void add(const AttentionShape& shape, const float* q, int64_t position) {
    queries_.push_back(Query{q, nullptr, shape.first_place(position), position});
  }

  // All queries of tokens [token_begin, token_end) of a row: i is query (token_begin + i / share, g * share + i % share).
  void add_row(const AttentionShape& shape, const AttentionRow& row, int64_t token_begin, int64_t token_end, int32_t g) {
    const int32_t share = shape.num_heads / shape.num_kv_heads;
    for (int64_t t = token_begin; t < token_end; ++t)
      for (int32_t h = g * share; h < (g + 1) * share; ++h)
        add(shape, row.q + (t * shape.num_heads + h) * shape.head_dim, row.first_position + t);
  }

  // Lays each tile's queries out as (K, queries of the tile). After the last `add`.
  void pack(int64_t K) {
    packed_.resize(std::max(packed_.size(), queries_.size() * static_cast<size_t>(K)));
    for (int64_t begin = 0; begin < count(); begin += Isa::kTile) {
      const int64_t size = std::min<int64_t>(Isa::kTile, count() - begin);
      float* tile = packed_.data() + begin * K;
      for (int64_t r = 0; r < size; ++r)
        for (int64_t d = 0; d < K; ++d) tile[d * size + r] = (*this)[begin + r].q[d];
    }
  }

  // Memory for two parts of each query.
  float* parts(const AttentionShape& shape) {
    parts_.resize(std::max(parts_.size(), queries_.size() * static_cast<size_t>(2 * shape.part_floats())));
    return parts_.data();
  }

  void clear_parts(int64_t K) {
    for (Query& query : queries_) {
      std::memset(query.part, 0, sizeof(float) * static_cast<size_t>(K + 1 + 1));
      query.part[K] = -1e30f;
    }
  }

  int64_t first() const { return first_of(queries_.data(), count()); }
  int64_t last() const { return last_of(queries_.data(), count()); }

  // Adds places [begin, end) of one split to the parts; both are multiples of 64 or beyond what is seen. `readable`:
  // the row's blocks are there up to this place.
  void attend(const AttentionShape& shape, const Blocks& blocks, int64_t begin, int64_t end, int64_t readable) {
    const int64_t from = std::max(first(), begin), to = std::min({last() + 1, end, readable});
    for (int64_t start = from / kKeySpan * kKeySpan; start < to; start += kKeySpan)
      for (int64_t tile = 0; tile < count(); tile += Isa::kTile) {
        const Query* queries = queries_.data() + tile;
        const int64_t size = std::min<int64_t>(Isa::kTile, count() - tile);
        const Span span = seen(queries, size, start, readable);
        if (span.begin >= span.end) continue;
        attend_tile<Isa>(shape, blocks, queries, static_cast<int>(size), packed_.data() + tile * shape.head_dim, span,
                         seen(queries, size, start + kKeySpan, readable));
      }
  }

 private:
  std::vector<Query> queries_;
  std::vector<float> packed_, parts_;

  static int64_t first_of(const Query* queries, int64_t count) {
    int64_t first = queries[0].first;
    for (int64_t i = 1; i < count; ++i) first = std::min(first, queries[i].first);
    return first;
  }
  static int64_t last_of(const Query* queries, int64_t count) {
    int64_t last = queries[0].last;
    for (int64_t i = 1; i < count; ++i) last = std::max(last, queries[i].last);
    return last;
  }
  static Span seen(const Query* queries, int64_t count, int64_t start, int64_t readable) {
    return {start, std::max(start, first_of(queries, count) / kBlockSize * kBlockSize),
            std::min({start + kKeySpan, last_of(queries, count) + 1, readable})};
  }
};

// Adds one part to running sums of the same form.
template <class Isa>
void merge_into(const AttentionShape& shape, float* sums, const float* part) {
  const int64_t K = shape.head_dim;
  const float next = part[K] > sums[K] ? part[K] : sums[K];
  const float old_factor = std::exp(sums[K] - next), new_factor = std::exp(part[K] - next);
  sums[K] = next;
  sums[K + 1] = sums[K + 1] * old_factor + part[K + 1] * new_factor;
  for (int64_t d = 0; d < K; d += Isa::kWidth) {
    const typename Isa::Vector old_sum = Isa::mul(Isa::load(sums + d), Isa::set1(old_factor));
    Isa::store(sums + d, Isa::fmadd(Isa::load(part + d), Isa::set1(new_factor), old_sum));
  }
}

template <class Isa>
void normalise(const AttentionShape& shape, const float* sums, float* out) {
  const int64_t K = shape.head_dim;
  const typename Isa::Vector inverse = Isa::set1(1.0f / sums[K + 1]);
  for (int64_t d = 0; d < K; d += Isa::kWidth) Isa::store(out + d, Isa::mul(Isa::load(sums + d), inverse));
}

// Where each query's sums are, and room for its part of one split.
struct Sums {
  float *sums, *part;
};

// Adds splits [begin, end) to each query's sums, one after another; `empty`: there are none yet.
template <class Isa, class SumsOf>
void sum_splits(const AttentionShape& shape, const Blocks& blocks, Readers<Isa>& readers, int64_t begin, int64_t end,
                bool empty, int64_t readable, SumsOf sums_of) {
  for (int64_t split = begin; split < end; ++split) {
    for (int64_t i = 0; i < readers.count(); ++i) readers[i].part = empty ? sums_of(i).sums : sums_of(i).part;
    readers.clear_parts(shape.head_dim);
    readers.attend(shape, blocks, split * kKeySplit, (split + 1) * kKeySplit, readable);
    if (!empty)
      for (int64_t i = 0; i < readers.count(); ++i) merge_into<Isa>(shape, sums_of(i).sums, sums_of(i).part);
    empty = false;
  }
}

template <class Isa>
void attention_parts(const AttentionShape& shape, const AttentionRow& row, int64_t token_begin, int64_t token_end,
                     int32_t g, int64_t split_begin, int64_t split_end, int64_t num_splits, float* parts) {
  if (!fits(shape))
    return reference_kernels().attention_parts(shape, row, token_begin, token_end, g, split_begin, split_end,
                                               num_splits, parts);
  const int64_t share = shape.num_heads / shape.num_kv_heads;
  Readers<Isa>& readers = Readers<Isa>::none();
  readers.add_row(shape, row, token_begin, token_end, g);
  readers.pack(shape.head_dim);
  for (int64_t split = split_begin; split < split_end; ++split) {
    for (int64_t i = 0; i < readers.count(); ++i) {
      const int64_t query = (token_begin + i / share) * shape.num_heads + g * share + i % share;
      readers[i].part = parts + (query * num_splits + split) * shape.part_floats();
    }
    readers.clear_parts(shape.head_dim);
    readers.attend(shape, Blocks(shape, row, g), split * kKeySplit, (split + 1) * kKeySplit, readers.last() + 1);
  }
}

template <class Isa>
void merge_parts(const AttentionShape& shape, const float* parts, int64_t num_parts, float* out) {
  if (!fits(shape)) return reference_kernels().merge_parts(shape, parts, num_parts, out);
  float sums[kMaxHeadDim + 2];
  std::memcpy(sums, parts, bytes_of_part(shape));
  for (int64_t i = 1; i < num_parts; ++i) merge_into<Isa>(shape, sums, parts + i * shape.part_floats());
  normalise<Isa>(shape, sums, out);
}

template <class Isa>
void attention(const AttentionShape& shape, const AttentionRow& row, int64_t token_begin, int64_t token_end,
               int32_t g) {
  if (!fits(shape)) return reference_kernels().attention(shape, row, token_begin, token_end, g);
  const int64_t share = shape.num_heads / shape.num_kv_heads, F = shape.part_floats();
  const Blocks blocks(shape, row, g);
  Readers<Isa>& readers = Readers<Isa>::none();
  readers.add_row(shape, row, token_begin, token_end, g);
  readers.pack(shape.head_dim);
  float* room = readers.parts(shape);
  auto query = [&](int64_t i) { return (token_begin + i / share) * shape.num_heads + g * share + i % share; };
  auto sums_of = [&](int64_t i) { return Sums{room + 2 * i * F, room + (2 * i + 1) * F}; };
  const int64_t readable = readers.last() + 1;
  int64_t begin = row.num_summed / kKeySplit;
  bool empty = begin == 0;
  if (!empty)
    for (int64_t i = 0; i < readers.count(); ++i)
      std::memcpy(sums_of(i).sums, row.sums + query(i) * shape.shared_floats(), bytes_of_part(shape));
  if (row.num_summed % kKeySplit) {  // go on with what there is of a split
    for (int64_t i = 0; i < readers.count(); ++i) {
      readers[i].part = empty ? sums_of(i).sums : sums_of(i).part;
      std::memcpy(readers[i].part, row.sums + query(i) * shape.shared_floats() + F, bytes_of_part(shape));
    }
    readers.attend(shape, blocks, row.num_summed, (begin + 1) * kKeySplit, readable);
    if (!empty)
      for (int64_t i = 0; i < readers.count(); ++i) merge_into<Isa>(shape, sums_of(i).sums, sums_of(i).part);
    empty = false;
    ++begin;
  }
  sum_splits<Isa>(shape, blocks, readers, std::max(readers.first() / kKeySplit, begin), readers.last() / kKeySplit + 1,
                  empty, readable, sums_of);
  for (int64_t i = 0; i < readers.count(); ++i)
    normalise<Isa>(shape, sums_of(i).sums, row.out + query(i) * shape.head_dim);
}

template <class Isa>
void attention_shared(const AttentionShape& shape, const AttentionRow& row, const SharedQuery* queries,
                      int64_t num_queries, int32_t g, int64_t num_places) {
  if (!fits(shape)) return reference_kernels().attention_shared(shape, row, queries, num_queries, g, num_places);
  const int64_t F = shape.part_floats(), num_splits = num_places / kKeySplit;
  const Blocks blocks(shape, row, g);
  Readers<Isa>& readers = Readers<Isa>::none();
  for (int64_t i = 0; i < num_queries; ++i) readers.add(shape, queries[i].q, queries[i].position);
  readers.pack(shape.head_dim);
  float* room = readers.parts(shape);
  auto sums_of = [&](int64_t i) { return Sums{queries[i].sums, room + i * F}; };
  // Before a window nothing is read, but that there is nothing is written once.
  const int64_t unseen = std::min(readers.first() / kKeySplit, num_splits);
  if (unseen > 0) sum_splits<Isa>(shape, blocks, readers, 0, 1, true, num_places, sums_of);
  sum_splits<Isa>(shape, blocks, readers, unseen, num_splits, unseen == 0, num_places, sums_of);
  if (num_places % kKeySplit) {
    for (int64_t i = 0; i < num_queries; ++i) readers[i].part = queries[i].sums + F;
    readers.clear_parts(shape.head_dim);
    readers.attend(shape, blocks, num_splits * kKeySplit, num_places, num_places);
  }
}

}  // namespace
}  // namespace headrace
