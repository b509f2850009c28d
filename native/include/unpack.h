// SPDX-License-Identifier: Apache-2.0
// From a file's quantised row to integer codes: what every packed layout is built from.
#pragma once
#include <cstdint>

namespace headrace {

// value[i] = scale[i / group] * code[i] + min[i / group]; exact in float32 for every format, by ggml's
// format definitions. Codes of formats without a minimum are signed and min is 0.
struct CodeShape {
  int group;        // 16 or 32 values share a scale
  bool has_min;     // false: min is all zero and codes are signed
  int code_min;     // range of code, e.g. 0..15 for Q4_1 and Q4_K, -8..7 for Q4_0, -128..127 for Q8_0,
  int code_max;     //   -127..113 for IQ4_NL / IQ4_XS, -12..12 for MXFP4, 0..3 for Q2_K, -4..3 for Q3_K ...
};

// The shape of a quantised format by its ggml type number; returns false if the type is not one of
// Q4_0 2, Q4_1 3, Q5_0 6, Q5_1 7, Q8_0 8, Q2_K 10, Q3_K 11, Q4_K 12, Q5_K 13, Q6_K 14, IQ4_NL 20,
// IQ4_XS 23, MXFP4 39.
bool code_shape(int gguf_id, CodeShape* out);

// Bytes of n values of any supported type (the above and F32 0, F16 1, BF16 30); -1: another type, or n does not
// fill whole qblocks.
int64_t stored_bytes(int gguf_id, int64_t n);

// Unpack n values (a multiple of the format's qblock) from src.
// code (n,) int16, scale (n / group,) float, min (n / group,) float.
void unpack_codes(int gguf_id, const uint8_t* src, int64_t n, int16_t* code, float* scale, float* min);

// n values of any supported type to float32. false: unknown type.
bool dequantize(int gguf_id, const uint8_t* src, int64_t n, float* out);

float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f);  // round to nearest even, overflow to infinity
}  // namespace headrace
