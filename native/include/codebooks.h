// SPDX-License-Identifier: Apache-2.0
// Formats whose 4-bit codes are places in a table of values.
#pragma once
#include <cstdint>

namespace headrace {

// IQ4_NL and IQ4_XS: ggml's non-linear values.
inline constexpr int8_t kIQ4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// MXFP4: e2m1 floats (OCP microscaling formats 1.0); doubled they are integers.
inline constexpr int8_t kDoubledE2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace headrace
