// SPDX-License-Identifier: Apache-2.0
// Kernels timed without Python in the loop: submodule `timing` of the extension, made by
//   void bind_bench(nanobind::module_& m);
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "peak.h"
#include "timing.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace headrace {
namespace {

const Kernels& table_named(const std::string& name) {
  const Kernels* table = select_kernels(name.c_str());
  if (!table) throw std::invalid_argument("kernels '" + name + "' do not run on this CPU");
  return *table;
}

std::vector<double> product(const std::string& kernels, const std::vector<std::shared_ptr<PackedMatrix>>& matrices,
                            int64_t tokens, Team& team, double seconds, int64_t fewest_calls) {
  nb::gil_scoped_release released;
  return time_product(table_named(kernels), matrices, tokens, team, Budget{seconds, fewest_calls});
}

std::vector<double> attention(const std::string& kernels, int32_t num_heads, int32_t num_kv_heads, int32_t head_dim,
                              int64_t context, int64_t tokens, int64_t copies, Team& team, double seconds,
                              int64_t fewest_calls) {
  nb::gil_scoped_release released;
  const AttentionShape shape{num_heads, num_kv_heads, head_dim, 0.125f, 0, 0.0f};
  return time_attention(table_named(kernels), shape, context, tokens, copies, team, Budget{seconds, fewest_calls});
}

std::vector<double> rows(const std::string& kernels, const std::string& name, int64_t width, int64_t tokens, Team& team,
                         double seconds, int64_t fewest_calls) {
  nb::gil_scoped_release released;
  return time_rows(table_named(kernels), name, width, tokens, team, Budget{seconds, fewest_calls});
}

std::pair<std::string, double> peak(const std::string& kernels, Team& team, double seconds) {
  nb::gil_scoped_release released;
  const Kernels& table = table_named(kernels);
  const ByteChain* chain = byte_chain(table.name);
  return {chain ? chain->name : "", byte_peak(table, team, seconds)};
}

}  // namespace

void bind_bench(nb::module_& m) {
  nb::module_ timing = m.def_submodule("timing", "Kernels on all threads of a team, timed; see timing.h.");
  timing.def("product", &product, "kernels"_a, "matrices"_a, "tokens"_a, "team"_a, "seconds"_a, "fewest_calls"_a,
             "Seconds of each product of one of the matrices, by turns, with random tokens.");
  timing.def("attention", &attention, "kernels"_a, "num_heads"_a, "num_kv_heads"_a, "head_dim"_a, "context"_a,
             "tokens"_a, "copies"_a, "team"_a, "seconds"_a, "fewest_calls"_a,
             "Seconds of each attention of a row's last tokens over a context of random keys and values.");
  timing.def("rows", &rows, "kernels"_a, "name"_a, "width"_a, "tokens"_a, "team"_a, "seconds"_a, "fewest_calls"_a,
             "Seconds of each pass of rms_norm, quantize or gated over all tokens.");
  timing.def("byte_peak", &peak, "kernels"_a, "team"_a, "seconds"_a,
             "Name of the table's multiply-add chain for bytes, and multiply-adds a second; '' and 0: it has none.");
}

}  // namespace headrace
