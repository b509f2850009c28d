// SPDX-License-Identifier: Apache-2.0
// The one file that knows Python. Buffers come in as arrays and stay the caller's; long work releases the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>

#include "kernels.h"
#include "pack.h"
#include "program.h"
#include "team.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace headrace {

void bind_testing(nb::module_& m);
void bind_bench(nb::module_& m);

namespace {

template <class T>
using In = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Out = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Without the GIL while it lives. A daemon thread that comes back when the interpreter is ending is unwound by Python
// (before 3.14), which C++ cannot let through a destructor: such a thread stays here until the process ends.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) pause();
    }
  }

 private:
  PyThreadState* state_;
};

const Kernels& kernels_named(const std::string& name) {
  const Kernels* table = select_kernels(name.c_str());
  if (!table) throw std::invalid_argument("kernels '" + name + "' do not run on this CPU");
  return *table;
}

// Reads a buffer of `bytes` over and over on all threads for about `seconds`: bytes a second.
double read_bandwidth(int num_threads, int64_t bytes, double seconds) {
  Team team(num_threads);
  const int64_t words = bytes / 8;
  std::vector<uint64_t> data(static_cast<size_t>(words));
  for (int64_t i = 0; i < words; ++i) data[i] = static_cast<uint64_t>(i);
  std::atomic<uint64_t> sink{0};
  double best = 0;
  const auto start = std::chrono::steady_clock::now();
  auto elapsed = [](auto since) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
  };
  do {
    const auto begin = std::chrono::steady_clock::now();
    team.run([&](int thread) {
      const int64_t from = words * thread / team.size(), to = words * (thread + 1) / team.size();
      uint64_t sums[8] = {};
      int64_t i = from;
      for (; i + 8 <= to; i += 8)
        for (int j = 0; j < 8; ++j) sums[j] += data[i + j];
      uint64_t sum = 0;
      for (uint64_t s : sums) sum += s;
      sink.fetch_add(sum, std::memory_order_relaxed);
    });
    best = std::max(best, static_cast<double>(words) * 8 / elapsed(begin));
  } while (elapsed(start) < seconds);
  return sink.load() == 0 ? 0.0 : best;
}

std::shared_ptr<PackedMatrix> pack(int gguf_id, In<uint8_t> data, int64_t rows, int64_t columns, Team& team) {
  const WithoutGil released;
  return std::make_shared<PackedMatrix>(gguf_id, data.data(), static_cast<int64_t>(data.size()), rows, columns, team);
}

std::shared_ptr<PackedMatrix> packed_before(int gguf_id, In<uint8_t> data, int64_t rows, int64_t columns,
                                            float multiplier) {
  return std::make_shared<PackedMatrix>(gguf_id, data.data(), static_cast<int64_t>(data.size()), rows, columns,
                                        multiplier, std::make_shared<In<uint8_t>>(data));
}

// A matrix times tokens by a named table, for tests and kernel timing. x (T, K), result (T, N).
void product(const std::string& kernels, const PackedMatrix& matrix, In<float> x, Out<float> y) {
  const Kernels& table = kernels_named(kernels);
  const Matrix& w = matrix.view();
  const int64_t tokens = static_cast<int64_t>(x.size()) / w.num_columns, K = w.num_columns;
  if (static_cast<int64_t>(x.size()) != tokens * K || static_cast<int64_t>(y.size()) != tokens * w.num_rows)
    throw std::invalid_argument("x must be (T, K) and y (T, N)");
  std::vector<int8_t> q(static_cast<size_t>(tokens * K));
  std::vector<float> scale(tokens * K / kGroup), sum32(scale.size()), sum16(tokens * K / kHalfGroup);
  std::vector<TokenPanel> panels((tokens + kPanelTokens - 1) / kPanelTokens * (K / kGroup));
  const bool with_panels = table.fewest_for_panels && tokens >= table.fewest_for_panels;
  for (int64_t t = 0; t < (is_quantized(w.kind) ? tokens : 0); ++t) {
    const int64_t g = t * (K / kGroup);
    table.quantize(x.data() + t * K, K, q.data() + t * K, scale.data() + g, sum32.data() + g, sum16.data() + 2 * g);
    if (with_panels)
      put_in_panels({nullptr, q.data() + t * K, scale.data() + g, sum32.data() + g, sum16.data() + 2 * g, nullptr}, K, t,
                    panels.data());
  }
  const Activations input{x.data(), q.data(), scale.data(), sum32.data(), sum16.data(), panels.data()};
  table.matmul(w, 0, w.num_blocks(), input, 0, tokens, Destination{y.data(), w.num_rows, nullptr, nullptr});
}

// All threads meet `times` times; `breaking` of them (-1: none) throws before the last time.
void meet(Team& team, int times, int breaking) {
  team.run([&](int thread) {
    for (int i = 0; i < times; ++i) {
      if (thread == breaking && i == times - 1) throw std::bad_alloc();
      team.barrier();
    }
  });
}

void run(Program& program, In<int32_t> tokens, In<int64_t> row_begin, In<int64_t> num_computed,
         In<int64_t> block_begin, In<int32_t> blocks, In<uint8_t> outputs, In<int32_t> bias_ids, In<float> bias,
         In<int32_t> history, Out<uint16_t> kv, int64_t num_blocks, Out<int32_t> result_token,
         Out<float> result_logprob, Out<int32_t> result_top, Out<float> result_top_logprob) {
  Step step{};
  step.num_tokens = static_cast<int64_t>(tokens.size());
  step.num_rows = static_cast<int64_t>(num_computed.size());
  step.num_outputs = static_cast<int64_t>(outputs.size() / sizeof(OutputSpec));
  step.tokens = tokens.data();
  step.row_begin = row_begin.data();
  step.num_computed = num_computed.data();
  step.block_begin = block_begin.data();
  step.blocks = blocks.data();
  step.outputs = reinterpret_cast<const OutputSpec*>(outputs.data());
  step.bias_ids = bias_ids.data();
  step.bias = bias.data();
  step.history = history.data();
  step.kv = kv.data();
  step.num_blocks = num_blocks;
  step.result_token = result_token.data();
  step.result_logprob = result_logprob.data();
  step.result_top = result_top.data();
  step.result_top_logprob = result_top_logprob.data();
  const size_t num_rows = num_computed.size(), num_outputs = result_token.size();
  if (row_begin.size() != num_rows + 1 || block_begin.size() != num_rows + 1 ||
      outputs.size() != num_outputs * sizeof(OutputSpec) || result_logprob.size() != num_outputs ||
      result_top.size() != num_outputs * kMaxTop || result_top_logprob.size() != num_outputs * kMaxTop ||
      static_cast<int64_t>(kv.size()) != program.kv_halves(num_blocks))
    throw std::invalid_argument("run: sizes of the step's arrays or of the K/V storage do not fit together");
  const WithoutGil released;
  program.run(step);
}

}  // namespace
}  // namespace headrace

NB_MODULE(_native, m) {
  using namespace headrace;
  nb::module_ testing = m.def_submodule("testing", "Pieces of the native code, for tests.");
  bind_testing(testing);
  testing.def("product", &product, "kernels"_a, "matrix"_a, "x"_a, "y"_a, nb::call_guard<WithoutGil>());
  testing.def("meet", &meet, "team"_a, "times"_a, "breaking"_a = -1, nb::call_guard<WithoutGil>());

  m.attr("MAX_TOP") = kMaxTop;
  m.attr("BLOCK_SIZE") = kBlockSize;
  m.attr("PACKED_LAYOUT") = kPackedLayout;
  m.attr("OUTPUT_SPEC_BYTES") = sizeof(OutputSpec);
  m.def("kernel_tables", [] {
    std::vector<std::string> names;
    for (const TableStatus& status : kernel_tables())
      if (status.table) names.emplace_back(status.name);
    return names;
  }, "Names of the kernel tables that run on this CPU, fastest first.");
  m.def("kernel_table_lacks", [] {
    std::vector<std::pair<std::string, std::string>> tables;
    for (const TableStatus& status : kernel_tables()) tables.emplace_back(status.name, status.lacks);
    return tables;
  }, "All kernel tables, fastest first, each with what this CPU lacks for it: empty where it runs.");
  m.def("read_bandwidth", &read_bandwidth, "num_threads"_a, "bytes"_a, "seconds"_a,
        nb::call_guard<WithoutGil>(), "Bytes a second that all threads together read from memory.");
  m.def("pack", &pack, "gguf_id"_a, "data"_a, "rows"_a, "columns"_a, "team"_a);
  m.def("packed_before", &packed_before, "gguf_id"_a, "data"_a, "rows"_a, "columns"_a, "multiplier"_a,
        "A matrix on bytes that `pack` made earlier; it keeps the array.");

  nb::class_<Team>(m, "Team").def(nb::init<int>(), "num_threads"_a).def_prop_ro("size", &Team::size);
  nb::class_<PackedMatrix>(m, "PackedMatrix")
      .def_prop_ro("num_bytes", &PackedMatrix::num_bytes)
      .def_prop_ro("kind", [](const PackedMatrix& p) { return static_cast<int>(p.view().kind); })
      .def_prop_ro("multiplier", [](const PackedMatrix& p) { return p.view().multiplier; })
      .def_prop_ro("data", [](const PackedMatrix& p) {
        return nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>(p.view().data, {static_cast<size_t>(p.num_bytes())});
      });
  bind_bench(m);
  nb::class_<Program>(m, "Program")
      .def("__init__",
           [](Program* self, const std::string& kernels, std::shared_ptr<Team> team, int64_t vocab_size) {
             new (self) Program(kernels_named(kernels), std::move(team), vocab_size);
           },
           "kernels"_a, "team"_a, "vocab_size"_a)
      .def("add_buffer", &Program::add_buffer, "width"_a)
      .def("add_rope",
           [](Program& self, int32_t dim, bool interleaved, float factor, In<double> frequency) {
             if (static_cast<int32_t>(frequency.size()) != dim / 2) throw std::invalid_argument("rope: dim / 2 frequencies");
             return self.add_rope(RopeTable{dim, interleaved, factor,
                                            std::vector<double>(frequency.data(), frequency.data() + frequency.size())});
           },
           "dim"_a, "interleaved"_a, "attention_factor"_a, "frequency"_a)
      .def("add_vector",
           [](Program& self, In<float> weight) {
             return self.add_vector(weight.data(), static_cast<int64_t>(weight.size()));
           },
           "weight"_a)
      .def("add_matrix", &Program::add_matrix, "matrix"_a)
      .def("embed",
           [](Program& self, int gguf_id, In<uint8_t> table, int64_t row_bytes, int64_t width, float scale, int out) {
             self.embed(gguf_id, table.data(), row_bytes, width, scale, out);
           },
           "gguf_id"_a, "table"_a, "row_bytes"_a, "width"_a, "scale"_a, "out"_a, nb::keep_alive<1, 3>())
      .def("norm", &Program::norm, "input"_a, "vector"_a, "eps"_a, "out"_a, "add_to"_a)
      .def("linear",
           [](Program& self, int prologue, int in, int second, int vector, float eps, int activation,
              const std::vector<int>& matrices, const std::vector<int>& bias, const std::vector<int>& outs,
              const std::vector<int>& residuals) {
             self.linear(static_cast<Prologue>(prologue), in, second, vector, eps, static_cast<Activation>(activation),
                         matrices, bias, outs, residuals);
           },
           "prologue"_a, "input"_a, "second"_a, "vector"_a, "eps"_a, "activation"_a, "matrices"_a, "biases"_a,
           "outs"_a, "residuals"_a)
      .def("attention",
           [](Program& self, int q, int k, int v, int out, int num_heads, int num_kv_heads, int head_dim, float scale,
              int window, float softcap, int layer, int q_norm, int k_norm, float eps, int rope) {
             self.attention(q, k, v, out, AttentionShape{num_heads, num_kv_heads, head_dim, scale, window, softcap},
                            layer, q_norm, k_norm, eps, rope);
           },
           "q"_a, "k"_a, "v"_a, "out"_a, "num_heads"_a, "num_kv_heads"_a, "head_dim"_a, "scale"_a, "window"_a,
           "softcap"_a, "layer"_a, "q_norm"_a, "k_norm"_a, "eps"_a, "rope"_a)
      .def("add", &Program::add, "x"_a, "y"_a, "out"_a)
      .def("softcap", &Program::softcap, "x"_a, "cap"_a, "out"_a)
      .def("select_outputs", &Program::select_outputs, "input"_a, "out"_a)
      .def("finish", &Program::finish, "logits"_a)
      .def("run", &run, "tokens"_a, "row_begin"_a, "num_computed"_a, "block_begin"_a, "blocks"_a, "outputs"_a,
           "bias_ids"_a, "bias"_a, "history"_a, "kv"_a, "num_blocks"_a, "result_token"_a, "result_logprob"_a,
           "result_top"_a, "result_top_logprob"_a);
}
