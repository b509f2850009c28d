// SPDX-License-Identifier: Apache-2.0
// Every kernel of every table that this CPU runs against the reference, without Python. An argument names the table
// that must be the fastest here.
#include <cmath>
#include <cstring>
#include <limits>

#include "checks.h"

namespace headrace {
namespace {

std::string at_length(const char* what, int64_t n) { return std::string(what) + " of " + std::to_string(n); }

struct Quantized {
  explicit Quantized(int64_t n)
      : q(static_cast<size_t>(n)), scale(q.size() / kGroup), sum32(scale), sum16(2 * scale.size()) {}
  std::vector<int8_t> q;
  std::vector<float> scale, sum32, sum16;
};

Quantized quantized(const Kernels& table, const std::vector<float>& x) {
  Quantized out(static_cast<int64_t>(x.size()));
  table.quantize(x.data(), static_cast<int64_t>(x.size()), out.q.data(), out.scale.data(), out.sum32.data(),
                 out.sum16.data());
  return out;
}

// Codes, scales and sums are those of the reference to the bit, whatever the size of the input.
void check_quantize(const Kernels& table, Checks& checks) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Random random(1);
  for (const int64_t n : {32, 96, 1024})
    for (const float size : {1e-45f, 1e-38f, 1e-31f, 2e-30f, 1e-3f, 1.0f, 1e30f})
      for (const float odd : {0.0f, NAN, kInfinity, -kInfinity}) {
        std::vector<float> x = random.normals(n);
        for (float& v : x) v *= size;
        if (odd != 0) x[static_cast<size_t>(random.below(n))] = odd;
        const Quantized got = quantized(table, x), want = quantized(reference_kernels(), x);
        const int64_t groups = n / kGroup;
        checks.that(got.q == want.q, at_length("quantize: codes", n));
        checks.same(got.scale.data(), want.scale.data(), groups, at_length("quantize: scales", n));
        checks.same(got.sum32.data(), want.sum32.data(), groups, at_length("quantize: sums of 32", n));
        checks.same(got.sum16.data(), want.sum16.data(), 2 * groups, at_length("quantize: sums of 16", n));
      }
}

void check_rms_norm(const Kernels& table, Checks& checks) {
  Random random(2);
  for (const int64_t n : {1, 3, 4, 7, 15, 16, 17, 31, 64, 100, 576, 4099}) {
    const std::vector<float> x = random.normals(n), weight = random.normals(n);
    std::vector<float> got(x.size()), want(x.size());
    table.rms_norm(x.data(), weight.data(), n, 1e-5f, got.data());
    reference_kernels().rms_norm(x.data(), weight.data(), n, 1e-5f, want.data());
    for (size_t i = 0; i < x.size(); ++i)
      checks.near(&got[i], &want[i], 1, kNormBudget, std::fabs(want[i]), at_length("rms_norm", n));
    std::vector<float> odd = x;
    odd[static_cast<size_t>(random.below(n))] = NAN;
    table.rms_norm(odd.data(), weight.data(), n, 1e-5f, got.data());
    for (const float v : got) checks.that(std::isnan(v), at_length("rms_norm: NaN does not show", n));
  }
}

// All halves there are, and what rounds to and between them.
void check_halves(const Kernels& table, Checks& checks) {
  Random random(3);
  std::vector<float> x = {0.0f, -0.0f, 65504.0f, 65519.9f, 65520.0f, -65520.0f, 1e30f, 0x1p-24f, 0x1p-25f, 0x1.8p-25f,
                          0x1p-26f, -0x1.8p-24f, INFINITY, -INFINITY, NAN, -NAN, 2049.0f, 2051.0f, 1e-40f};
  for (int i = 0; i < 20000; ++i) {
    uint32_t bits = 0;
    for (int b = 0; b < 4; ++b) bits = bits << 8 | random.byte();
    float v;
    std::memcpy(&v, &bits, 4);
    x.push_back(i % 2 ? v : random.normal());
  }
  for (const int64_t n : {1, 3, 8, 13, static_cast<int>(x.size())}) {
    std::vector<uint16_t> got(static_cast<size_t>(n)), want(got);
    table.halves(x.data(), n, got.data());
    reference_kernels().halves(x.data(), n, want.data());
    checks.that(got == want, at_length("halves", n));
  }
}

void check_gated(const Kernels& table, Checks& checks) {
  Random random(4);
  for (const Activation activation : {Activation::Silu, Activation::GeluTanh})
    for (const int64_t n : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 64, 1000}) {
      const std::vector<float> up = random.normals(n);
      std::vector<float> gate(up.size()), got(up.size()), want(up.size());
      for (float& v : gate) v = random.normal() * (random.below(4) ? 2.0f : 60.0f);
      table.gated(gate.data(), up.data(), n, activation, got.data());
      reference_kernels().gated(gate.data(), up.data(), n, activation, want.data());
      for (size_t i = 0; i < up.size(); ++i)
        checks.near(&got[i], &want[i], 1, kGateBudget, std::fabs(gate[i] * up[i]), at_length("gated", n));
      gate.back() = NAN;
      table.gated(gate.data(), up.data(), n, activation, got.data());
      checks.that(std::isnan(got.back()), at_length("gated: NaN does not show", n));
    }
}

bool check_table(const Kernels& table, const Kernels& twin) {
  Checks checks;
  check_quantize(table, checks);
  check_rms_norm(table, checks);
  check_halves(table, checks);
  check_gated(table, checks);
  check_products(table, twin, checks);
  check_attention(table, twin, checks);
  std::printf("%s: %lld checks, %lld failed\n", table.name, static_cast<long long>(checks.num()),
              static_cast<long long>(checks.num_failed()));
  return checks.num_failed() == 0;
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  using namespace headrace;
  bool holds = true;
  const Kernels* plainest = &reference_kernels();  // of one kind of processor, whose tables agree to the bit
  for (const TableStatus& status : kernel_tables())
    if (status.table && status.table != &reference_kernels()) plainest = status.table;
  for (const TableStatus& status : kernel_tables()) {
    if (status.table)
      holds = check_table(*status.table, status.table == &reference_kernels() ? *status.table : *plainest) && holds;
    else
      std::printf("%s: skipped, this CPU lacks %s\n", status.name, status.lacks.c_str());
  }
  const char* fastest = select_kernels("auto")->name;
  if (argc > 1 && std::strcmp(argv[1], fastest) != 0) {
    std::printf("FAILED: the fastest table here is %s, not %s\n", fastest, argv[1]);
    holds = false;
  }
  return holds ? 0 : 1;
}
