// SPDX-License-Identifier: Apache-2.0
// The portable kernels as Python functions, for tests alone: submodule `testing` of the extension, made by
//   void bind_testing(nanobind::module_& m);
// which the bindings call. Arguments are checked here because the kernels do not.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../include/sampling.h"
#include "../include/unpack.h"

namespace nb = nanobind;

namespace headrace {
namespace {

template <typename T>
using Array = nb::ndarray<nb::numpy, T, nb::ndim<1>, nb::c_contig>;
template <typename T>
using Input = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
Array<T> array_of(std::vector<T> values) {
  auto* owned = new std::vector<T>(std::move(values));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return Array<T>(owned->data(), {owned->size()}, owner);
}

CodeShape shape_of(int gguf_id) {
  CodeShape shape;
  if (!code_shape(gguf_id, &shape)) throw std::invalid_argument("not a quantised type: " + std::to_string(gguf_id));
  return shape;
}

nb::tuple unpack(int gguf_id, Input<uint8_t> src, int64_t n) {
  const CodeShape shape = shape_of(gguf_id);
  std::vector<int16_t> code(static_cast<size_t>(n));
  std::vector<float> scale(static_cast<size_t>(n / shape.group)), min(scale.size());
  unpack_codes(gguf_id, src.data(), n, code.data(), scale.data(), min.data());
  return nb::make_tuple(array_of(std::move(code)), array_of(std::move(scale)), array_of(std::move(min)));
}

Array<float> dequantized(int gguf_id, Input<uint8_t> src, int64_t n) {
  std::vector<float> out(static_cast<size_t>(n));
  if (!dequantize(gguf_id, src.data(), n, out.data()))
    throw std::invalid_argument("unknown type: " + std::to_string(gguf_id));
  return array_of(std::move(out));
}

int32_t draw(Input<float> logits, float temperature, int32_t top_k, float top_p, float min_p,
             float repetition_penalty, float presence_penalty, float frequency_penalty, uint64_t seed,
             uint64_t position, const std::vector<std::pair<int32_t, float>>& logit_bias,
             const std::vector<int32_t>& history, int32_t num_prompt) {
  std::vector<int32_t> ids;
  std::vector<float> bias;
  for (const auto& [id, value] : logit_bias) {
    ids.push_back(id);
    bias.push_back(value);
  }
  const Draw arguments{temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty,
                       seed, position, ids.data(), bias.data(), static_cast<int32_t>(ids.size()), history.data(),
                       static_cast<int32_t>(history.size()), num_prompt};
  std::vector<float> copy(logits.data(), logits.data() + logits.size());
  std::vector<TopEntry> scratch;
  return draw_token(copy.data(), static_cast<int32_t>(copy.size()), arguments, scratch);
}

nb::tuple scored(Input<float> logits, int32_t token, int32_t num_top) {
  if (token < 0 || static_cast<size_t>(token) >= logits.size()) throw std::out_of_range("token");
  std::vector<TopEntry> top(static_cast<size_t>(num_top));
  const float logprob =
      log_probabilities(logits.data(), static_cast<int32_t>(logits.size()), token, num_top, top.data());
  std::vector<std::pair<int32_t, float>> listed;
  for (const TopEntry& entry : top)
    if (entry.token >= 0) listed.emplace_back(entry.token, entry.logprob);
  return nb::make_tuple(logprob, listed);
}

}  // namespace

void bind_testing(nb::module_& m) {
  m.def("code_shape", [](int gguf_id) {
    const CodeShape shape = shape_of(gguf_id);
    return nb::make_tuple(shape.group, shape.has_min, shape.code_min, shape.code_max);
  }, nb::arg("gguf_id"));
  m.def("unpack", unpack, nb::arg("gguf_id"), nb::arg("src"), nb::arg("n"));
  m.def("dequantize", dequantized, nb::arg("gguf_id"), nb::arg("src"), nb::arg("n"));
  m.def("f16_to_f32", f16_to_f32, nb::arg("half"));
  m.def("f32_to_f16", f32_to_f16, nb::arg("value"));
  m.def("halves_to_floats", [](Input<uint16_t> halves) {
    std::vector<float> out;
    for (size_t i = 0; i < halves.size(); ++i) out.push_back(f16_to_f32(halves.data()[i]));
    return array_of(std::move(out));
  }, nb::arg("halves"));
  m.def("floats_to_halves", [](Input<float> floats) {
    std::vector<uint16_t> out;
    for (size_t i = 0; i < floats.size(); ++i) out.push_back(f32_to_f16(floats.data()[i]));
    return array_of(std::move(out));
  }, nb::arg("floats"));
  m.def("uniform", uniform, nb::arg("seed"), nb::arg("position"));
  m.def("draw_token", draw, nb::arg("logits"), nb::arg("temperature"), nb::arg("top_k"), nb::arg("top_p"),
        nb::arg("min_p"), nb::arg("repetition_penalty"), nb::arg("presence_penalty"),
        nb::arg("frequency_penalty"), nb::arg("seed"), nb::arg("position"), nb::arg("logit_bias"),
        nb::arg("history"), nb::arg("num_prompt"));
  m.def("log_probabilities", scored, nb::arg("logits"), nb::arg("token"), nb::arg("num_top"));
}

}  // namespace headrace
