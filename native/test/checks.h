// SPDX-License-Identifier: Apache-2.0
// What the kernel tests share: random numbers, error budgets, and a count of what did not hold.
#pragma once
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "kernels.h"

namespace headrace {

// Products of two tables, as a share of the largest result: the order of float32 sums.
constexpr double kProductBudget = 1e-5;
// A norm, as a share of each result: the order of float32 sums of squares.
constexpr double kNormBudget = 2e-6;
// A gate, as a share of |gate * up|: e**x within 3 ulp, and what `1 + tanh` loses below zero.
constexpr double kGateBudget = 1e-6;
// Attention, as a share of the largest value: float32 sums over all keys, e**x, and scores of up to 20.
constexpr double kAttentionBudget = 1e-5;

class Random {
 public:
  explicit Random(uint32_t seed) : bits_(seed) {}
  int64_t below(int64_t n) { return static_cast<int64_t>(bits_() % static_cast<uint64_t>(n)); }
  uint8_t byte() { return static_cast<uint8_t>(bits_() >> 24); }
  float within(float low, float high) {
    return low + (high - low) * static_cast<float>(bits_() >> 8) * 0x1p-24f;
  }
  // About normally distributed.
  float normal() {
    float sum = 0;
    for (int i = 0; i < 6; ++i) sum += within(-1, 1);
    return sum * 0.70710678f;
  }
  std::vector<float> normals(int64_t n) {
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) v = normal();
    return x;
  }

 private:
  std::mt19937 bits_;
};

class Checks {
 public:
  // A line for the first few failures of each table.
  void that(bool holds, const std::string& what) {
    ++num_;
    if (holds) return;
    if (++num_failed_ <= 20) std::printf("FAILED: %s\n", what.c_str());
  }
  // Equal in every bit; NaN where the other is NaN.
  void same(const float* got, const float* want, int64_t n, const std::string& what) {
    bool holds = true;
    for (int64_t i = 0; i < n; ++i)
      holds = holds && (got[i] == want[i] || (got[i] != got[i] && want[i] != want[i]));
    that(holds, what + ": not the same to the bit");
  }
  // |got - want| <= budget * size, for finite numbers.
  void near(const float* got, const float* want, int64_t n, double budget, double size, const std::string& what) {
    double worst = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double error = got[i] > want[i] ? double{got[i]} - want[i] : double{want[i]} - got[i];
      if (!(error <= worst)) worst = error;  // NaN too
      if (worst != worst) break;
    }
    that(worst <= budget * size, what + ": off by " + std::to_string(worst / size) + " of the size, budget " +
                                     std::to_string(budget));
  }
  int64_t num() const { return num_; }
  int64_t num_failed() const { return num_failed_; }

 private:
  int64_t num_ = 0, num_failed_ = 0;
};

inline float largest(const std::vector<float>& x) {
  float top = 0;
  for (const float v : x) top = v > top ? v : -v > top ? -v : top;
  return top;
}

// `twin`: another table, whose results are the same to the bit.
void check_products(const Kernels& table, const Kernels& twin, Checks& checks);
void check_attention(const Kernels& table, const Kernels& twin, Checks& checks);

}  // namespace headrace
