// SPDX-License-Identifier: Apache-2.0
// Kernels timed on all threads of a team with nothing else in between: what bench/ asks. Each returns the seconds of
// every call after a first one that only warms up, for about the seconds that `budget` grants.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"
#include "pack.h"
#include "team.h"

namespace headrace {

struct Budget {
  double seconds;
  int64_t fewest_calls;
};

// Call i multiplies matrices[i % n], all of one shape, with `tokens` random tokens: so many matrices that a call's
// weights have left the caches come from memory.
std::vector<double> time_product(const Kernels& kernels, const std::vector<std::shared_ptr<PackedMatrix>>& matrices,
                                 int64_t tokens, Team& team, Budget budget);

// `tokens` query tokens of one row, the last `tokens` of `context` positions, over random keys and values; call i
// reads copy i % copies of them. Split by heads, tokens and keys as a program's step does.
std::vector<double> time_attention(const Kernels& kernels, const AttentionShape& shape, int64_t context,
                                   int64_t tokens, int64_t copies, Team& team, Budget budget);

// "rms_norm", "quantize" or "gated" on rows of `width`. Their input comes from a cache, as in a model.
// std::invalid_argument: another name.
std::vector<double> time_rows(const Kernels& kernels, const std::string& name, int64_t width, int64_t tokens,
                              Team& team, Budget budget);

// Multiply-adds of bytes a second, all threads together, of the table's chain (peak.h), the best of several passes in
// `seconds`; 0 where there is none.
double byte_peak(const Kernels& kernels, Team& team, double seconds);

}  // namespace headrace
