// SPDX-License-Identifier: Apache-2.0
// Attention over paged keys and values: against the reference, alone and in company, in parts, and after a prefix that
// was summed up for many.
#include <algorithm>
#include <cmath>

#include "checks.h"
#include "unpack.h"

namespace headrace {
namespace {

struct Case {
  int32_t num_heads, num_kv_heads, head_dim;
  int64_t first_position, num_new;
  int32_t window;
  float softcap;
};

// One row's cache and queries. The blocks lie in no order, and places after the last hold what is no number.
class RandomRow {
 public:
  RandomRow(const Case& of, Random& random)
      : shape_{of.num_heads, of.num_kv_heads, of.head_dim, 1.0f / std::sqrt(static_cast<float>(of.head_dim)),
               of.window, of.softcap},
        num_new_(of.num_new),
        places_(of.first_position + of.num_new) {
    const int64_t num_blocks = (places_ + kBlockSize - 1) / kBlockSize, K = of.head_dim, G = of.num_kv_heads;
    for (int64_t b = 0; b < num_blocks; ++b) blocks_.push_back(static_cast<int32_t>(num_blocks - 1 - b));
    std::swap(blocks_.front(), blocks_[static_cast<size_t>(num_blocks / 2)]);
    const size_t size = static_cast<size_t>(num_blocks * G * K * kBlockSize);
    keys_.assign(size, f32_to_f16(NAN));
    values_.assign(size, f32_to_f16(NAN));
    for (int64_t place = 0; place < places_; ++place)
      for (int64_t g = 0; g < G; ++g) {
        const int64_t block = blocks_[static_cast<size_t>(place / kBlockSize)];
        const size_t head = static_cast<size_t>((block * G + g) * K * kBlockSize);
        const int64_t s = place % kBlockSize;
        for (int64_t d = 0; d < K; ++d) {
          keys_[head + static_cast<size_t>(d * kBlockSize + s)] = f32_to_f16(random.normal());
          values_[head + static_cast<size_t>(s * K + d)] = f32_to_f16(random.normal());
        }
      }
    q_ = random.normals(num_queries() * K);
    for (float& v : q_) v *= 2;
    first_position_ = of.first_position;
  }

  const AttentionShape& shape() const { return shape_; }
  int64_t num_new() const { return num_new_; }
  int64_t num_queries() const { return num_new_ * shape_.num_heads; }
  int64_t position(int64_t token) const { return first_position_ + token; }
  int64_t num_splits() const { return (places_ + kKeySplit - 1) / kKeySplit; }
  std::vector<float>& q() { return q_; }
  std::vector<float> empty() const { return std::vector<float>(q_.size(), NAN); }

  AttentionRow view(std::vector<float>& out) const {
    return {keys_.data(), values_.data(), blocks_.data(), first_position_, q_.data(), out.data()};
  }
  AttentionRow view(std::vector<float>& out, const std::vector<float>& sums, int64_t num_summed) const {
    AttentionRow row = view(out);
    row.sums = sums.data();
    row.num_summed = num_summed;
    return row;
  }

 private:
  AttentionShape shape_;
  int64_t num_new_, places_, first_position_ = 0;
  std::vector<int32_t> blocks_;
  std::vector<uint16_t> keys_, values_;
  std::vector<float> q_;
};

std::vector<float> attended(const Kernels& table, const RandomRow& row) {
  std::vector<float> out = row.empty();
  for (int32_t g = 0; g < row.shape().num_kv_heads; ++g)
    table.attention(row.shape(), row.view(out), 0, row.num_new(), g);
  return out;
}

void same(const std::vector<float>& got, const std::vector<float>& want, const std::string& what, Checks& checks) {
  checks.same(got.data(), want.data(), static_cast<int64_t>(want.size()), what);
}

// Token after token, last first.
std::vector<float> one_by_one(const Kernels& table, const RandomRow& row) {
  std::vector<float> out = row.empty();
  for (int64_t t = row.num_new() - 1; t >= 0; --t)
    for (int32_t g = 0; g < row.shape().num_kv_heads; ++g)
      table.attention(row.shape(), row.view(out), t, t + 1, g);
  return out;
}

// Split by split as it is shared among threads, then merged. A window may hide whole splits.
std::vector<float> in_parts(const Kernels& table, const RandomRow& row) {
  const AttentionShape& shape = row.shape();
  const int64_t F = shape.part_floats(), splits = row.num_splits();
  std::vector<float> out = row.empty(), parts(static_cast<size_t>(row.num_queries() * splits * F), NAN);
  for (int64_t split = 0; split < splits; ++split)
    for (int32_t g = 0; g < shape.num_kv_heads; ++g)
      table.attention_parts(shape, row.view(out), 0, row.num_new(), g, split, split + 1, splits, parts.data());
  for (int64_t i = 0; i < row.num_queries(); ++i)
    table.merge_parts(shape, parts.data() + i * splits * F, splits, out.data() + i * shape.head_dim);
  return out;
}

// The first places summed up for all queries at once, then each token goes on from there.
std::vector<float> after_shared(const Kernels& table, const RandomRow& row, int64_t num_places) {
  const AttentionShape& shape = row.shape();
  const int64_t F = shape.shared_floats(), share = shape.num_heads / shape.num_kv_heads;
  std::vector<float> out = row.empty(), sums(static_cast<size_t>(row.num_queries() * F), NAN);
  for (int32_t g = 0; g < shape.num_kv_heads; ++g) {
    std::vector<SharedQuery> queries;
    for (int64_t t = 0; t < row.num_new(); ++t)
      for (int64_t h = g * share; h < (g + 1) * share; ++h) {
        const int64_t query = t * shape.num_heads + h;
        queries.push_back({row.view(out).q + query * shape.head_dim, sums.data() + query * F, row.position(t)});
      }
    table.attention_shared(shape, row.view(out), queries.data(), static_cast<int64_t>(queries.size()), g, num_places);
  }
  for (int32_t g = 0; g < shape.num_kv_heads; ++g)
    table.attention(shape, row.view(out, sums, num_places), 0, row.num_new(), g);
  return out;
}

void check_case(const Kernels& table, const Kernels& twin, const Case& of, Random& random, Checks& checks) {
  const std::string name = "attention of " + std::to_string(of.num_heads) + " heads, " +
                           std::to_string(of.num_kv_heads) + " with keys, of " + std::to_string(of.head_dim) +
                           ", tokens " + std::to_string(of.first_position) + " and " + std::to_string(of.num_new - 1) +
                           " more, window " + std::to_string(of.window);
  RandomRow row(of, random);
  const std::vector<float> got = attended(table, row), want = attended(reference_kernels(), row);
  checks.near(got.data(), want.data(), static_cast<int64_t>(want.size()), kAttentionBudget, 3.0, name);
  same(attended(twin, row), got, name + ", twin", checks);
  same(one_by_one(table, row), got, name + ", a token alone", checks);
  same(in_parts(table, row), got, name + ", in parts", checks);
  for (int64_t places = kKeySpan; places <= of.first_position; places += 3 * kKeySpan)
    same(after_shared(table, row, places), got, name + ", " + std::to_string(places) + " places shared", checks);
  // What is no number in one query shows there and nowhere else.
  const int64_t K = of.head_dim;
  row.q()[static_cast<size_t>((row.num_queries() - 1) * K + random.below(K))] = NAN;
  const std::vector<float> odd = attended(table, row);
  checks.same(odd.data(), got.data(), (row.num_queries() - 1) * K, name + ", NaN in another query");
  for (int64_t d = 0; d < K; ++d)
    checks.that(!std::isfinite(odd[static_cast<size_t>((row.num_queries() - 1) * K + d)]), name + ", NaN");
}

}  // namespace

void check_attention(const Kernels& table, const Kernels& twin, Checks& checks) {
  Random random(6);
  for (const int64_t position : {0, 1, 15, 16, 63, 64, 65, 255, 256, 300})
    check_case(table, twin, {3, 1, 64, position, 1, 0, 0}, random, checks);
  for (const Case& of :
       {Case{1, 1, 16, 70, 13, 0, 0}, Case{4, 4, 80, 129, 2, 0, 0}, Case{9, 3, 64, 0, 20, 0, 0},
        Case{8, 2, 128, 250, 9, 0, 0}, Case{7, 1, 48, 600, 1, 0, 0}, Case{2, 1, 256, 320, 3, 0, 0},
        Case{6, 2, 64, 200, 7, 5, 0}, Case{6, 2, 64, 590, 7, 100, 0}, Case{4, 2, 32, 513, 4, 512, 0},
        Case{4, 2, 64, 140, 5, 0, 20}, Case{4, 2, 64, 260, 5, 30, 2}, Case{2, 1, 24, 70, 3, 0, 0}})
    check_case(table, twin, of, random, checks);
}

}  // namespace headrace
