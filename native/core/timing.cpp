// SPDX-License-Identifier: Apache-2.0
#include "timing.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <stdexcept>

#include "peak.h"
#include "program.h"
#include "unpack.h"

namespace headrace {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// What replay does, so that the same sizes of work are timed.
constexpr int64_t kTokensPerChunk = 4, kTokensPerTask = 16, kTasksPerThread = 4;
constexpr int64_t kFewestRows = 256;

// One call's work in numbered pieces, in runs of which thread i takes the i-th first, then helps with the others.
struct Work {
  int num_runs;
  int64_t num_pieces;
  std::function<void(int64_t call, int64_t piece)> piece;
};

// All stages of a call, one after the other, a barrier behind each. The clock starts before the barrier that lets
// them begin: behind it others may have done all the work before this thread gets to look at the clock.
std::vector<double> time_calls(const std::vector<Work>& stages, Team& team, Budget budget) {
  std::vector<double> seconds;
  std::vector<std::vector<std::atomic<int64_t>>> next;  // of each stage and run
  for (const Work& work : stages) next.emplace_back(static_cast<size_t>(work.num_runs));
  bool more = true;
  const Clock::time_point start = Clock::now();
  Clock::time_point begin;
  team.run([&](int thread) {
    for (int64_t call = 0;; ++call) {
      if (thread == 0) {
        for (auto& runs : next)
          for (std::atomic<int64_t>& n : runs) n.store(0, std::memory_order_relaxed);
        more = call <= budget.fewest_calls || since(start) < budget.seconds;
        begin = Clock::now();
      }
      team.barrier();
      if (!more) return;
      for (size_t s = 0; s < stages.size(); ++s) {
        const Work& work = stages[s];
        for (int k = 0; k < work.num_runs; ++k) {
          const int run = (thread + k) % work.num_runs;
          const int64_t first = work.num_pieces * run / work.num_runs;
          const int64_t end = work.num_pieces * (run + 1) / work.num_runs;
          for (int64_t i; (i = first + next[s][run].fetch_add(1, std::memory_order_relaxed)) < end;)
            work.piece(call, i);
        }
        team.barrier();
      }
      if (thread == 0 && call > 0) seconds.push_back(since(begin));
    }
  });
  return seconds;
}

std::vector<float> random_floats(int64_t n) {
  std::minstd_rand random(1);
  std::uniform_real_distribution<float> spread(-1.0f, 1.0f);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& v : values) v = spread(random);
  return values;
}

// f16 of about -1 to 1.
void fill_halves(std::vector<uint16_t>& halves) {
  std::vector<uint16_t> some(4099);  // a prime: no period that a cache could like
  const std::vector<float> values = random_floats(static_cast<int64_t>(some.size()));
  for (size_t i = 0; i < some.size(); ++i) some[i] = f32_to_f16(values[i]);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = some[i % some.size()];
}

}  // namespace

std::vector<double> time_product(const Kernels& kernels, const std::vector<std::shared_ptr<PackedMatrix>>& matrices,
                                 int64_t tokens, Team& team, Budget budget) {
  if (matrices.empty() || tokens < 1) throw std::invalid_argument("time_product: one matrix and one token at least");
  const Matrix& w = matrices[0]->view();
  for (const auto& matrix : matrices)
    if (matrix->view().num_rows != w.num_rows || matrix->view().num_columns != w.num_columns ||
        matrix->view().kind != w.kind)
      throw std::invalid_argument("time_product: matrices of different shapes");
  const int64_t K = w.num_columns, groups = K / kGroup;
  const std::vector<float> x = random_floats(tokens * K);
  std::vector<int8_t> q(static_cast<size_t>(tokens * K));
  std::vector<float> scale(static_cast<size_t>(tokens * groups)), sum32(scale.size()), sum16(2 * scale.size());
  std::vector<TokenPanel> panels(static_cast<size_t>((tokens + kPanelTokens - 1) / kPanelTokens * groups));
  if (is_quantized(w.kind))
    for (int64_t t = 0; t < tokens; ++t) {
      const Activations own{nullptr, q.data() + t * K, scale.data() + t * groups, sum32.data() + t * groups,
                            sum16.data() + 2 * t * groups, nullptr};
      kernels.quantize(x.data() + t * K, K, q.data() + t * K, scale.data() + t * groups, sum32.data() + t * groups,
                       sum16.data() + 2 * t * groups);
      put_in_panels(own, K, t, panels.data());
    }
  const Activations input{x.data(), q.data(), scale.data(), sum32.data(), sum16.data(), panels.data()};
  std::vector<float> y(static_cast<size_t>(tokens * w.num_rows));
  const int64_t bytes = w.block_bytes() * w.num_blocks();
  const int64_t step = blocks_per_piece(bytes, w.block_bytes(), team.size());
  auto some_rows = [&](int64_t call, int64_t piece) {
    const Matrix& matrix = matrices[static_cast<size_t>(call) % matrices.size()]->view();
    const int64_t end = std::min(matrix.num_blocks(), (piece + 1) * step);
    const Destination to{y.data(), matrix.num_rows, nullptr, nullptr};
    kernels.matmul(matrix, piece * step, end, input, 0, tokens, to);
  };
  const Work products{team.size(), (w.num_blocks() + step - 1) / step, some_rows};
  return time_calls({products}, team, budget);
}

std::vector<double> time_attention(const Kernels& kernels, const AttentionShape& shape, int64_t context,
                                   int64_t tokens, int64_t copies, Team& team, Budget budget) {
  if (tokens < 1 || context < tokens || copies < 1 || shape.num_kv_heads < 1 ||
      shape.num_heads % shape.num_kv_heads != 0)
    throw std::invalid_argument("time_attention: sizes that do not fit together");
  const int64_t blocks_a_copy = (context + kBlockSize - 1) / kBlockSize;
  const size_t halves = static_cast<size_t>(copies * blocks_a_copy * shape.num_kv_heads * shape.head_dim * kBlockSize);
  std::vector<uint16_t> keys(halves), values(halves);
  fill_halves(keys);
  fill_halves(values);
  std::vector<int32_t> blocks(static_cast<size_t>(copies * blocks_a_copy));
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int32_t>(i);
  const int64_t width = int64_t{shape.num_heads} * shape.head_dim;
  const std::vector<float> q = random_floats(tokens * width);
  std::vector<float> out(q.size());
  auto row_of = [&](int64_t call) {
    return AttentionRow{keys.data(), values.data(), blocks.data() + call % copies * blocks_a_copy, context - tokens,
                        q.data(), out.data()};
  };
  const int64_t G = shape.num_kv_heads, H = shape.num_heads, floats = shape.part_floats();
  if (tokens == 1 && G < kTasksPerThread * team.size() && team.size() > 1 && context > kKeySplit) {
    const int64_t splits = (context - 1) / kKeySplit + 1;
    std::vector<float> parts(static_cast<size_t>(H * splits * floats));
    auto sum = [&](int64_t call, int64_t piece) {
      const int64_t split = piece / G;
      kernels.attention_parts(shape, row_of(call), 0, 1, static_cast<int32_t>(piece % G), split, split + 1, splits,
                              parts.data());
    };
    auto merge = [&](int64_t, int64_t h) {
      kernels.merge_parts(shape, parts.data() + h * splits * floats, splits, out.data() + h * shape.head_dim);
    };
    const Work sums{1, splits * G, sum}, merges{1, H, merge};
    return time_calls({sums, merges}, team, budget);
  }
  const int64_t shares = (tokens + kTokensPerTask - 1) / kTokensPerTask;
  auto attend = [&](int64_t call, int64_t piece) {
    const int64_t end = tokens - piece / G * kTokensPerTask;  // the last ones first
    kernels.attention(shape, row_of(call), std::max<int64_t>(0, end - kTokensPerTask), end,
                      static_cast<int32_t>(piece % G));
  };
  const Work whole{1, shares * G, attend};
  return time_calls({whole}, team, budget);
}

std::vector<double> time_rows(const Kernels& kernels, const std::string& name, int64_t width, int64_t tokens,
                              Team& team, Budget budget) {
  if (tokens < 1 || width < kGroup || width % kGroup != 0) throw std::invalid_argument("time_rows: whole groups of 32");
  const std::vector<float> x = random_floats(tokens * width), second = random_floats(tokens * width);
  std::vector<float> y(x.size()), scale(x.size() / kGroup), sum32(scale.size()), sum16(2 * scale.size());
  std::vector<int8_t> q(x.size());
  std::function<void(int64_t)> row;
  if (name == "rms_norm")
    row = [&](int64_t t) { kernels.rms_norm(x.data() + t * width, second.data(), width, 1e-5f, y.data() + t * width); };
  else if (name == "gated")
    row = [&](int64_t t) {
      kernels.gated(x.data() + t * width, second.data() + t * width, width, Activation::Silu, y.data() + t * width);
    };
  else if (name == "quantize")
    row = [&](int64_t t) {
      const int64_t g = t * (width / kGroup);
      kernels.quantize(x.data() + t * width, width, q.data() + t * width, scale.data() + g, sum32.data() + g,
                       sum16.data() + 2 * g);
    };
  else
    throw std::invalid_argument("time_rows: no kernel '" + name + "'");
  // A few rows take less time than threads need to meet: several passes over them count as one call.
  const int64_t passes = std::max<int64_t>(1, kFewestRows / tokens);
  auto some = [&](int64_t, int64_t piece) {
    const int64_t end = std::min(tokens, (piece + 1) * kTokensPerChunk);
    for (int64_t pass = 0; pass < passes; ++pass)
      for (int64_t t = piece * kTokensPerChunk; t < end; ++t) row(t);
  };
  const Work rows{1, (tokens + kTokensPerChunk - 1) / kTokensPerChunk, some};
  std::vector<double> seconds = time_calls({rows}, team, budget);
  for (double& s : seconds) s /= static_cast<double>(passes);
  return seconds;
}

double byte_peak(const Kernels& kernels, Team& team, double seconds) {
  const ByteChain* chain = byte_chain(kernels.name);
  if (!chain) return 0;
  constexpr double kPass = 0.02;
  auto pass = [&](int64_t rounds) {
    const Clock::time_point begin = Clock::now();
    team.run([&](int) { chain->run(rounds); });
    return since(begin);
  };
  int64_t rounds = 1024;
  while (pass(rounds) < kPass) rounds *= 2;
  double best = 0;
  const Clock::time_point start = Clock::now();
  do {
    best = std::max(best, static_cast<double>(rounds * chain->multiply_adds) * team.size() / pass(rounds));
  } while (since(start) < seconds);
  return best;
}

}  // namespace headrace
