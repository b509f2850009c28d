// SPDX-License-Identifier: Apache-2.0
// The attention ops of a step: which rows read which keys together, who computes what, and the computing.
#include <algorithm>
#include <cmath>
#include <functional>

#include "program.h"

namespace headrace {

namespace {
constexpr int64_t kHeadsWithTask = 8;        // rows with so few new tokens prepare heads inside their task
constexpr int64_t kTokensPerTask = 16;       // query tokens of an attention task
constexpr int64_t kSharedTokensPerTask = 64;
constexpr int64_t kFewestShared = 128;       // places: to read fewer together is not worth a barrier
constexpr int64_t kTokensPerChunk = 4;       // that a thread takes at once where tokens are handed out
constexpr int64_t kMostAtOnce = 256;         // numbers of a key that are rounded before they are scattered
constexpr int64_t kTasksPerThread = 4;       // attention tasks enough to keep threads busy without splitting keys

int64_t row_of(const Step& step, int64_t token) {
  return std::upper_bound(step.row_begin, step.row_begin + step.num_rows + 1, token) - step.row_begin - 1;
}
}  // namespace

void Program::plan_attention(const Step& step) {
  tasks_.clear();
  int32_t num_kv_heads = 0;
  int64_t part_floats = 0, longest = 0, most_new = 0;
  for (const Op& op : body_)
    if (op.code == Code::Attention) {
      num_kv_heads = std::max(num_kv_heads, op.shape.num_kv_heads);
      part_floats = std::max(part_floats, op.shape.num_heads * op.shape.part_floats());
    }
  for (int64_t row = 0; row < step.num_rows; ++row) {
    const int64_t num_new = step.row_begin[row + 1] - step.row_begin[row];
    most_new = std::max(most_new, num_new);
    longest = std::max(longest, step.num_computed[row] + num_new);
  }
  find_shared_prefixes(step);
  if (!prefixes_.empty()) shared_sums_.resize(std::max<size_t>(shared_sums_.size(), step.num_tokens * 2 * part_floats));
  plan_shared(num_kv_heads);
  // Few short tasks over long contexts leave threads idle: split the keys too. What is computed is the same.
  const bool few = prefixes_.empty() && most_new <= kHeadsWithTask && step.num_rows * num_kv_heads < kTasksPerThread * team_->size();
  num_splits_ = few && team_->size() > 1 && longest > kKeySplit ? (longest - 1) / kKeySplit + 1 : 0;
  if (num_splits_) parts_.resize(std::max<size_t>(parts_.size(), step.num_tokens * num_splits_ * part_floats));
  heads_apart_ = num_splits_ > 0 || !prefixes_.empty() || most_new > kHeadsWithTask;
  for (int64_t row = 0; row < step.num_rows; ++row) {
    const int64_t num_new = step.row_begin[row + 1] - step.row_begin[row];
    const int64_t share = most_new > kHeadsWithTask ? kTokensPerTask : num_new;
    const int64_t splits = num_splits_ ? (step.num_computed[row] + num_new - 1) / kKeySplit + 1 : 1;
    // Last tokens first: they have the most to read.
    for (int64_t end = num_new; end > 0; end -= share)
      for (int64_t split = 0; split < splits; ++split)
        for (int32_t g = 0; g < num_kv_heads; ++g)
          tasks_.push_back(AttentionTask{static_cast<int32_t>(row), g, std::max<int64_t>(0, end - share), end,
                                         num_splits_ ? split : -1});
  }
}

// Of the rows that begin with the same blocks as a first one, as many, and of what they share as much, as saves most.
void Program::find_shared_prefixes(const Step& step) {
  constexpr int64_t kSpanBlocks = kKeySpan / kBlockSize;
  prefixes_.clear();
  num_shared_places_.assign(static_cast<size_t>(step.num_rows), 0);
  // Places, in whole spans, that both rows have computed before this step in the same blocks; too few are none.
  auto in_common = [&](int64_t a, int64_t b) {
    const int64_t most = std::min(step.num_computed[a], step.num_computed[b]) / kKeySpan;
    const int32_t *left = step.blocks + step.block_begin[a], *right = step.blocks + step.block_begin[b];
    int64_t spans = 0;
    while (spans < most && std::equal(left + spans * kSpanBlocks, left + (spans + 1) * kSpanBlocks,
                                      right + spans * kSpanBlocks))
      ++spans;
    return spans * kKeySpan < kFewestShared ? 0 : spans * kKeySpan;
  };
  std::vector<int64_t> common(static_cast<size_t>(step.num_rows));
  for (int64_t row = 0; row < step.num_rows; ++row) {
    if (num_shared_places_[row] || step.num_computed[row] < kFewestShared) continue;
    std::vector<int64_t> sorted;
    for (int64_t other = row + 1; other < step.num_rows; ++other) {
      common[other] = num_shared_places_[other] ? 0 : in_common(row, other);
      if (common[other]) sorted.push_back(common[other]);
    }
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    int64_t best = 0, num_places = 0;
    for (size_t i = 0; i < sorted.size(); ++i)
      if (static_cast<int64_t>(i + 1) * sorted[i] > best) {
        best = static_cast<int64_t>(i + 1) * sorted[i];
        num_places = sorted[i];
      }
    if (!num_places) continue;
    SharedPrefix prefix{static_cast<int32_t>(row), num_places, {}, {}};
    for (int64_t member = row; member < step.num_rows; ++member) {
      if (member > row && common[member] < num_places) continue;
      num_shared_places_[member] = num_places;
      for (int64_t t = step.row_begin[member]; t < step.row_begin[member + 1]; ++t) {
        prefix.tokens.push_back(t);
        prefix.positions.push_back(step.num_computed[member] + t - step.row_begin[member]);
      }
    }
    prefixes_.push_back(std::move(prefix));
  }
}

void Program::plan_shared(int32_t num_kv_heads) {
  shared_tasks_.clear();
  for (size_t i = 0; i < prefixes_.size(); ++i) {
    const int64_t num_tokens = static_cast<int64_t>(prefixes_[i].tokens.size());
    const int64_t even = num_tokens * num_kv_heads / (kTasksPerThread * team_->size()) + 1;
    const int64_t share = std::min(even, kSharedTokensPerTask);
    for (int64_t begin = 0; begin < num_tokens; begin += share)
      for (int32_t g = 0; g < num_kv_heads; ++g)
        shared_tasks_.push_back(SharedTask{static_cast<int32_t>(i), g, begin, std::min(num_tokens, begin + share)});
  }
}

namespace {
void rotate(float* head, const float* angle, int32_t dim, bool interleaved) {
  const int32_t half = dim / 2;
  for (int32_t i = 0; i < half; ++i) {
    float& a = interleaved ? head[2 * i] : head[i];
    float& b = interleaved ? head[2 * i + 1] : head[i + half];
    const float c = angle[2 * i], s = angle[2 * i + 1];
    const float x = a, y = b;
    a = x * c - y * s;
    b = x * s + y * c;
  }
}
}  // namespace

// Norm and rotate the given heads of one token and write its keys and values to the cache.
void Program::prepare_heads(const Op& op, const Step& step, int64_t row, int64_t token, int32_t head_begin,
                            int32_t head_end, int32_t kv_begin, int32_t kv_end) {
  const int64_t K = op.shape.head_dim, G = op.shape.num_kv_heads, S = kBlockSize;
  const RopeTable* rope = op.rope < 0 ? nullptr : &ropes_[op.rope];
  const float* angle = rope ? angles_[op.rope].data() + token * rope->dim : nullptr;
  auto prepare = [&](float* head, int norm) {
    if (norm >= 0) kernels_.rms_norm(head, vectors_[norm].data(), K, op.eps, head);
    if (rope) rotate(head, angle, rope->dim, rope->interleaved);
  };
  for (int32_t h = head_begin; h < head_end; ++h) prepare(buffer(op.in, token) + h * K, op.vector);
  const int64_t position = step.num_computed[row] + token - step.row_begin[row];
  const int64_t block = step.blocks[step.block_begin[row] + position / S];
  const int64_t plane = step.num_blocks * G * K * S;
  for (int32_t g = kv_begin; g < kv_end; ++g) {
    float* key = buffer(op.second, token) + g * K;
    const float* value = buffer(op.third, token) + g * K;
    prepare(key, op.other_vector);
    uint16_t* keys = step.kv + 2 * op.layer * plane + (block * G + g) * K * S + position % S;
    uint16_t* values = step.kv + (2 * op.layer + 1) * plane + ((block * G + g) * S + position % S) * K;
    uint16_t scattered[kMostAtOnce];
    for (int64_t begin = 0; begin < K; begin += kMostAtOnce) {
      const int64_t count = std::min(K - begin, kMostAtOnce);
      kernels_.halves(key + begin, count, scattered);
      for (int64_t d = 0; d < count; ++d) keys[(begin + d) * S] = scattered[d];
    }
    kernels_.halves(value, K, values);
  }
}

void Program::run_attention(const Op& op, const Step& step) {
  if (heads_apart_) {
    for (int64_t begin; (begin = next(op) * kTokensPerChunk) < step.num_tokens;)
      for (int64_t t = begin; t < std::min(step.num_tokens, begin + kTokensPerChunk); ++t)
        prepare_heads(op, step, row_of(step, t), t, 0, op.shape.num_heads, 0, op.shape.num_kv_heads);
    team_->barrier();
  }
  if (!prefixes_.empty()) {
    std::atomic<int64_t>& counter = counters_[op.counter + 2];  // nothing is merged in such a step
    for (int64_t i; (i = counter.fetch_add(1, std::memory_order_relaxed)) < static_cast<int64_t>(shared_tasks_.size());)
      if (shared_tasks_[i].g < op.shape.num_kv_heads) attend_shared(op, step, shared_tasks_[i]);
    team_->barrier();
  }
  std::atomic<int64_t>& counter = counters_[op.counter + 1];
  for (int64_t i; (i = counter.fetch_add(1, std::memory_order_relaxed)) < static_cast<int64_t>(tasks_.size());)
    if (tasks_[i].g < op.shape.num_kv_heads) attend(op, step, tasks_[i]);
  if (num_splits_) {
    team_->barrier();
    merge_splits(op, step);
  }
}

void Program::attend(const Op& op, const Step& step, const AttentionTask& task) {
  const AttentionShape& shape = op.shape;
  const int64_t begin = step.row_begin[task.row];
  const int64_t plane = step.num_blocks * shape.num_kv_heads * shape.head_dim * kBlockSize;
  AttentionRow row{step.kv + 2 * op.layer * plane,
                   step.kv + (2 * op.layer + 1) * plane,
                   step.blocks + step.block_begin[task.row],
                   step.num_computed[task.row],
                   buffer(op.in, begin),
                   buffer(op.out, begin)};
  if (num_shared_places_[task.row]) {
    row.sums = shared_sums_.data() + begin * shape.num_heads * shape.shared_floats();
    row.num_summed = num_shared_places_[task.row];
  }
  if (task.split >= 0) {
    const bool seen = (task.split + 1) * kKeySplit > shape.first_place(row.first_position + task.token_begin);
    if (seen)
      kernels_.attention_parts(shape, row, task.token_begin, task.token_end, task.g, task.split, task.split + 1,
                               num_splits_, parts_of_row(op, step, task.row));
    return;
  }
  if (!heads_apart_) {
    const int32_t share = shape.num_heads / shape.num_kv_heads;
    for (int64_t t = task.token_begin; t < task.token_end; ++t)
      prepare_heads(op, step, task.row, begin + t, task.g * share, (task.g + 1) * share, task.g, task.g + 1);
  }
  kernels_.attention(shape, row, task.token_begin, task.token_end, task.g);
}

void Program::attend_shared(const Op& op, const Step& step, const SharedTask& task) {
  const AttentionShape& shape = op.shape;
  const SharedPrefix& prefix = prefixes_[task.prefix];
  const int64_t plane = step.num_blocks * shape.num_kv_heads * shape.head_dim * kBlockSize;
  const AttentionRow row{step.kv + 2 * op.layer * plane,
                         step.kv + (2 * op.layer + 1) * plane,
                         step.blocks + step.block_begin[prefix.row],
                         0,
                         nullptr,
                         nullptr};
  const int32_t share = shape.num_heads / shape.num_kv_heads;
  std::vector<SharedQuery> queries;
  queries.reserve(static_cast<size_t>((task.end - task.begin) * share));
  for (int64_t i = task.begin; i < task.end; ++i)
    for (int32_t h = task.g * share; h < (task.g + 1) * share; ++h) {
      const int64_t token = prefix.tokens[i];
      queries.push_back(SharedQuery{buffer(op.in, token) + h * shape.head_dim,
                                    shared_sums_.data() + (token * shape.num_heads + h) * shape.shared_floats(),
                                    prefix.positions[i]});
    }
  kernels_.attention_shared(shape, row, queries.data(), static_cast<int64_t>(queries.size()), task.g,
                            prefix.num_places);
}

float* Program::parts_of_row(const Op& op, const Step& step, int64_t row) {
  return parts_.data() + step.row_begin[row] * op.shape.num_heads * num_splits_ * op.shape.part_floats();
}

void Program::merge_splits(const Op& op, const Step& step) {
  const AttentionShape& shape = op.shape;
  const int64_t num_queries = step.num_tokens * shape.num_heads;
  std::atomic<int64_t>& counter = counters_[op.counter + 2];
  for (int64_t begin; (begin = counter.fetch_add(1, std::memory_order_relaxed) * kTokensPerChunk) < num_queries;)
    for (int64_t i = begin; i < std::min(num_queries, begin + kTokensPerChunk); ++i) {
      const int64_t t = i / shape.num_heads, h = i % shape.num_heads, row = row_of(step, t);
      const int64_t place = t - step.row_begin[row], position = step.num_computed[row] + place;
      const int64_t first = shape.first_place(position) / kKeySplit;
      const float* parts = parts_of_row(op, step, row) + (place * shape.num_heads + h) * num_splits_ * shape.part_floats();
      kernels_.merge_parts(shape, parts + first * shape.part_floats(), position / kKeySplit + 1 - first,
                           buffer(op.out, t) + h * shape.head_dim);
    }
}

}  // namespace headrace
