// SPDX-License-Identifier: Apache-2.0
// Products of every kind of matrix: against the reference, and each token alone and in company.
#include <algorithm>
#include <cmath>

#include "checks.h"
#include "unpack.h"

namespace headrace {
namespace {

struct Shape {
  int64_t rows, columns, tokens;
};

enum class Codes { Random, Lowest, Highest };

constexpr Kind kKinds[] = {Kind::Q4,    Kind::Q8,    Kind::Q8M, Kind::Q8G16, Kind::Q8G16M,
                           Kind::Q5,    Kind::Q5M,   Kind::Q6G16, Kind::IQ4, Kind::MXFP4,
                           Kind::Q3G16, Kind::Q2G16M, Kind::F32, Kind::F16, Kind::BF16};
constexpr int64_t kPrefetched = 8192;  // a product may ask for memory beyond the end, never read it

// Whether a code is a signed byte.
bool is_bytes(Kind kind) {
  return kind == Kind::Q8 || kind == Kind::Q8M || kind == Kind::Q8G16 || kind == Kind::Q8G16M;
}

void put_half(uint8_t* p, float v) {
  const uint16_t half = f32_to_f16(v);
  std::memcpy(p, &half, 2);
}

class RandomMatrix {
 public:
  RandomMatrix(Kind kind, const Shape& shape, Codes codes, Random& random)
      : view_{kind, shape.rows, shape.columns, nullptr, is_quantized(kind) ? 0.25f : 1.0f} {
    const int64_t size = view_.block_bytes() * view_.num_blocks();
    bytes_.resize(static_cast<size_t>(size + 64 + kPrefetched));
    uint8_t* data = bytes_.data() + (64 - reinterpret_cast<uintptr_t>(bytes_.data()) % 64) % 64;
    view_.data = data;
    for (uint8_t* record = data; record < data + size; record += record_bytes(kind)) fill(record, codes, random);
  }
  const Matrix& view() const { return view_; }

 private:
  Matrix view_;
  std::vector<uint8_t> bytes_;

  void fill(uint8_t* record, Codes codes, Random& random) const {
    const int64_t size = record_bytes(view_.kind);
    if (is_quantized(view_.kind)) {
      const int64_t header = header_bytes(view_.kind);
      for (int64_t i = 0; i < header; i += 2) put_half(record + i, random.normal() * 0.1f);
      for (int64_t i = header; i < size; ++i)
        record[i] = codes == Codes::Random    ? random.byte()
                    : codes == Codes::Highest ? (is_bytes(view_.kind) ? 0x7f : 0xff)
                                              : (is_bytes(view_.kind) ? 0x80 : 0x00);
      return;
    }
    for (int r = 0; r < kRowBlock; ++r) {
      const float v = random.normal();
      if (view_.kind == Kind::F32) std::memcpy(record + 4 * r, &v, 4);
      if (view_.kind == Kind::F16) put_half(record + 2 * r, v);
      if (view_.kind == Kind::BF16) std::memcpy(record + 2 * r, reinterpret_cast<const uint8_t*>(&v) + 2, 2);
    }
  }
};

// Tokens as a product reads them: whole numbers and floats.
class Input {
 public:
  Input(std::vector<float> x, int64_t num_columns, bool for_quantized) : x_(std::move(x)) {
    a_.x = x_.data();
    if (!for_quantized) return;
    const int64_t tokens = static_cast<int64_t>(x_.size()) / num_columns, groups = num_columns / kGroup;
    q_.resize(x_.size());
    scale_.resize(x_.size() / kGroup);
    sum32_.resize(scale_.size());
    sum16_.resize(2 * scale_.size());
    reference_kernels().quantize(x_.data(), static_cast<int64_t>(x_.size()), q_.data(), scale_.data(), sum32_.data(),
                                 sum16_.data());
    panels_.resize(static_cast<size_t>((tokens + kPanelTokens - 1) / kPanelTokens * groups));
    a_ = {x_.data(), q_.data(), scale_.data(), sum32_.data(), sum16_.data(), panels_.data()};
    for (int64_t t = 0; t < tokens; ++t)
      put_in_panels({a_.x, a_.q + t * num_columns, a_.scale + t * groups, a_.sum32 + t * groups,
                     a_.sum16 + 2 * t * groups, nullptr},
                    num_columns, t, panels_.data());
  }
  const Activations& view() const { return a_; }

 private:
  std::vector<float> x_, scale_, sum32_, sum16_;
  std::vector<int8_t> q_;
  std::vector<TokenPanel> panels_;
  Activations a_{};
};

std::string name_of(Kind kind, const Shape& shape) {
  return "product of kind " + std::to_string(static_cast<int>(kind)) + ", " + std::to_string(shape.rows) + " x " +
         std::to_string(shape.columns) + " by " + std::to_string(shape.tokens) + " tokens";
}

std::vector<float> product(const Kernels& table, const Matrix& w, const Activations& a, int64_t tokens) {
  std::vector<float> y(static_cast<size_t>(tokens * w.num_rows), NAN);
  table.matmul(w, 0, w.num_blocks(), a, 0, tokens, {y.data(), w.num_rows, nullptr, nullptr});
  return y;
}

void check_shape(const Kernels& table, const Kernels& twin, Kind kind, const Shape& shape, Codes codes, Random& random,
                 Checks& checks) {
  const std::string name = name_of(kind, shape);
  const RandomMatrix matrix(kind, shape, codes, random);
  const Matrix& w = matrix.view();
  std::vector<float> x = random.normals(shape.tokens * shape.columns);
  if (codes != Codes::Random)  // every activation is 127 or -127
    for (float& v : x) v = codes == Codes::Highest || random.below(2) ? 1.0f : -1.0f;
  const Input input(x, shape.columns, is_quantized(kind));
  const std::vector<float> got = product(table, w, input.view(), shape.tokens);
  const std::vector<float> want = product(reference_kernels(), w, input.view(), shape.tokens);
  checks.near(got.data(), want.data(), shape.tokens * shape.rows, kProductBudget, largest(want), name);
  const std::vector<float> other = product(twin, w, input.view(), shape.tokens);
  checks.same(other.data(), got.data(), shape.tokens * shape.rows, name + ", twin");
  for (int64_t t = 0; t < shape.tokens; ++t) {
    std::vector<float> y(got.size(), NAN);
    table.matmul(w, 0, w.num_blocks(), input.view(), t, t + 1, {y.data(), shape.rows, nullptr, nullptr});
    checks.same(y.data() + t * shape.rows, got.data() + t * shape.rows, shape.rows, name + ", a token alone");
  }
}

// A bias and a residual in place, wide strides, some of the blocks and tokens: nothing else is written.
void check_destination(const Kernels& table, Kind kind, Random& random, Checks& checks) {
  const Shape shape{29, 96, 7};
  const std::string name = name_of(kind, shape) + ", some of them, with bias and residual";
  const RandomMatrix matrix(kind, shape, Codes::Random, random);
  const Input input(random.normals(shape.tokens * shape.columns), shape.columns, is_quantized(kind));
  const int64_t stride = shape.rows + 5;
  const std::vector<float> bias = random.normals(shape.rows), before = random.normals(shape.tokens * stride);
  for (const int64_t begin : {0, 1, 3}) {
    std::vector<float> got = before, want = before;
    table.matmul(matrix.view(), begin, 4, input.view(), 1, 6, {got.data(), stride, bias.data(), got.data()});
    reference_kernels().matmul(matrix.view(), begin, 4, input.view(), 1, 6,
                               {want.data(), stride, bias.data(), want.data()});
    checks.near(got.data(), want.data(), shape.tokens * stride, kProductBudget, largest(want), name);
    for (int64_t t = 0; t < shape.tokens; ++t)
      for (int64_t n = 0; n < stride; ++n) {
        const bool is_asked = t >= 1 && t < 6 && n >= begin * kRowBlock && n < shape.rows;
        const size_t i = static_cast<size_t>(t * stride + n);
        if (!is_asked) checks.that(got[i] == before[i], name + ": wrote elsewhere");
      }
  }
}

// What is no number shows in its token's rows and in no other.
void check_nan(const Kernels& table, Kind kind, Random& random, Checks& checks) {
  const Shape shape{13, 64, 6};
  const RandomMatrix matrix(kind, shape, Codes::Random, random);
  std::vector<float> x = random.normals(shape.tokens * shape.columns);
  x[static_cast<size_t>(2 * shape.columns + random.below(shape.columns))] = NAN;
  const Input input(x, shape.columns, is_quantized(kind));
  const std::vector<float> y = product(table, matrix.view(), input.view(), shape.tokens);
  for (int64_t t = 0; t < shape.tokens; ++t)
    for (int64_t n = 0; n < shape.rows; ++n)
      checks.that(std::isnan(y[static_cast<size_t>(t * shape.rows + n)]) == (t == 2), name_of(kind, shape) + ", NaN");
}

}  // namespace

void check_products(const Kernels& table, const Kernels& twin, Checks& checks) {
  Random random(5);
  for (const Kind kind : kKinds) {
    for (const Shape& shape : {Shape{1, 32, 1}, Shape{8, 32, 1}, Shape{8, 64, 2}, Shape{9, 96, 3}, Shape{37, 512, 5},
                               Shape{24, 1056, 17}, Shape{16, 64, 35}, Shape{7, 2048, 9}})
      check_shape(table, twin, kind, shape, Codes::Random, random, checks);
    if (is_quantized(kind)) {
      for (const Codes codes : {Codes::Lowest, Codes::Highest})
        check_shape(table, twin, kind, {16, 512, 5}, codes, random, checks);
    } else {
      for (const Shape& shape : {Shape{8, 1, 1}, Shape{11, 3, 2}, Shape{5, 7, 3}, Shape{19, 130, 4}})
        check_shape(table, twin, kind, shape, Codes::Random, random, checks);
    }
    check_destination(table, kind, random, checks);
    check_nan(table, kind, random, checks);
  }
}

}  // namespace headrace
