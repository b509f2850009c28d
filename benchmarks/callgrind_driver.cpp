// SPDX-License-Identifier: Apache-2.0
// One call of one kernel on made-up numbers, for callgrind.py: `driver TABLE KERNEL TOKENS`. Only what is inside
// measured() is to be counted; prints how many units of work that was.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "kernels.h"

using namespace headrace;

namespace {

constexpr int64_t kRows = 64, kColumns = 1024, kContext = 1024;

const Kernels* table_named(const std::string& name) {
  if (name == "reference") return &reference_kernels();
#if defined(HEADRACE_X86)
  if (name == "avx2") return &avx2_kernels();
#endif
  return nullptr;
}

std::vector<float> floats(int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(static_cast<int>(i * 37 % 201) - 100) / 100;
  return values;
}

std::function<void()> call;

}  // namespace

extern "C" __attribute__((noinline)) void measured() {
  call();
  __asm__ volatile("" : : : "memory");
}

int main(int count, char** words) {
  const Kernels* table = count == 4 ? table_named(words[1]) : nullptr;
  if (!table) return std::fprintf(stderr, "usage: driver TABLE KERNEL TOKENS\n"), 2;
  const std::string kernel = words[2];
  const int64_t tokens = std::atoll(words[3]), groups = kColumns / kGroup;
  const std::vector<float> x = floats(tokens * kColumns), second = floats(tokens * kColumns);
  std::vector<float> y(x.size()), scale(tokens * groups), sum32(tokens * groups), sum16(2 * tokens * groups);
  std::vector<int8_t> q(x.size());
  auto quantize = [&] {
    for (int64_t t = 0; t < tokens; ++t)
      table->quantize(x.data() + t * kColumns, kColumns, q.data() + t * kColumns, scale.data() + t * groups,
                      sum32.data() + t * groups, sum16.data() + 2 * t * groups);
  };
  int64_t units = tokens * kColumns;

  const Kind kind = kernel == "q4" ? Kind::Q4 : Kind::Q8;
  Matrix w{kind, kRows, kColumns, nullptr, 1.0f};
  const size_t bytes = static_cast<size_t>(w.block_bytes() * w.num_blocks());
  uint8_t* weights = static_cast<uint8_t*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
  for (size_t i = 0; i < bytes; ++i) weights[i] = static_cast<uint8_t>(0x20 + i * 7 % 16);  // as halves: small numbers
  w.data = weights;
  const Activations input{x.data(), q.data(), scale.data(), sum32.data(), sum16.data(), nullptr};
  std::vector<float> product(static_cast<size_t>(tokens * kRows));

  const AttentionShape shape{9, 3, 64, 0.125f, 0, 0.0f};
  const int64_t width = int64_t{shape.num_heads} * shape.head_dim;
  std::vector<uint16_t> keys(static_cast<size_t>(kContext * shape.num_kv_heads * shape.head_dim), 0x2c00);
  std::vector<int32_t> blocks(kContext / kBlockSize);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int32_t>(i);
  const std::vector<float> queries = floats(tokens * width);
  std::vector<float> out(queries.size());

  if (kernel == "q4" || kernel == "q8") {
    quantize();
    units *= kRows;
    call = [&] {
      table->matmul(w, 0, w.num_blocks(), input, 0, tokens, Destination{product.data(), kRows, nullptr, nullptr});
    };
  } else if (kernel == "attention") {
    units = 0;
    for (int64_t t = 0; t < tokens; ++t) units += 2 * width * (kContext - tokens + t + 1);
    call = [&] {
      const AttentionRow row{keys.data(), keys.data(), blocks.data(), kContext - tokens, queries.data(), out.data()};
      for (int32_t g = 0; g < shape.num_kv_heads; ++g) table->attention(shape, row, 0, tokens, g);
    };
  } else if (kernel == "quantize") {
    call = quantize;
  } else if (kernel == "rms_norm") {
    call = [&] {
      for (int64_t t = 0; t < tokens; ++t)
        table->rms_norm(x.data() + t * kColumns, second.data(), kColumns, 1e-5f, y.data() + t * kColumns);
    };
  } else if (kernel == "gated") {
    call = [&] { table->gated(x.data(), second.data(), tokens * kColumns, Activation::Silu, y.data()); };
  } else {
    return std::fprintf(stderr, "no kernel %s\n", words[2]), 2;
  }
  measured();
  std::printf("%lld\n", static_cast<long long>(units));
  return 0;
}
