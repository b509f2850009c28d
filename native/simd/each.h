// SPDX-License-Identifier: Apache-2.0
// A loop that is written out, whatever its body.
#pragma once
#include <cstddef>
#include <type_traits>
#include <utility>

namespace headrace {
namespace {

// f(0), f(1) .. f(N - 1) written out, so that an array that f indexes lies in registers.
template <class F, size_t... I>
[[gnu::always_inline]] inline void each_of(std::index_sequence<I...>, F f) {
  (f(std::integral_constant<int, static_cast<int>(I)>{}), ...);
}
template <int N, class F>
[[gnu::always_inline]] inline void each(F f) {
  each_of(std::make_index_sequence<N>{}, f);
}

}  // namespace
}  // namespace headrace
