// SPDX-License-Identifier: Apache-2.0
// How products walk over blocks of rows and over tokens: a Product's run<M> is one block times M tokens.
#pragma once
#include <algorithm>

#include "kernels.h"

namespace headrace {
namespace {

// Weights come from memory in order; asking for them this far ahead covers the wait, also over the ends of
// pages, where the hardware's own prefetch stops.
constexpr int64_t kAhead = 4096;

template <int Bytes>
inline void prefetch_ahead(const uint8_t* record) {
  for (int i = 0; i < Bytes; i += 64) __builtin_prefetch(record + kAhead + i);
}

// The last `count` < M + 1 tokens.
template <class Product, int M>
void run_rest(int64_t count, const Matrix& w, int64_t block, const Activations& a, int64_t t, const Destination& to) {
  if constexpr (M > 0) {
    if (count == M) return Product::template run<M>(w, block, a, t, to);
    run_rest<Product, M - 1>(count, w, block, a, t, to);
  }
}

constexpr int64_t kCachedBytes = 320 * 1024;  // of activations, in second-level caches of 512 KiB and more

template <class Product, int Most>
void run_products(const Matrix& w, int64_t block_begin, int64_t block_end, const Activations& a, int64_t token_begin,
                  int64_t token_end, const Destination& to) {
  // Tokens in spans whose activations stay in the second-level cache while all blocks pass over them.
  const int64_t bytes_per_token = w.num_columns * (is_quantized(w.kind) ? 2 : 4);
  const int64_t span = std::max<int64_t>(Most, kCachedBytes / bytes_per_token / Most * Most);
  for (int64_t begin = token_begin; begin < token_end; begin += span) {
    const int64_t end = std::min(token_end, begin + span);
    for (int64_t block = block_begin; block < block_end; ++block) {
      int64_t t = begin;
      for (; t + Most <= end; t += Most) Product::template run<Most>(w, block, a, t, to);
      run_rest<Product, Most - 1>(end - t, w, block, a, t, to);
    }
  }
}

}  // namespace
}  // namespace headrace
