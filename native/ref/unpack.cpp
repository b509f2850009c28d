// SPDX-License-Identifier: Apache-2.0
// ggml's tensor formats, byte by byte: the portable definition. Each qblock becomes integer codes with a
// scale (and a minimum) for every group, so that value = scale * code + min. All formats are little-endian.
//
// Exactness: a float16 scale has 11 significant bits and sub-scales and codes at most 8 each. Where a format
// has a minimum, scale, product and minimum are exact in float32 and only their sum rounds (so a fused
// multiply-add gives the same bits); where it has none, only the product may round.
#include "../include/unpack.h"

#include <cstring>

#include "../include/codebooks.h"

namespace headrace {
namespace {

constexpr int MAX_QBLOCK = 256;
constexpr int MAX_GROUPS = 16;
constexpr int F32 = 0, F16 = 1, BF16 = 30;

uint16_t load_u16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }

uint32_t load_u32(const uint8_t* p) { return load_u16(p) | static_cast<uint32_t>(load_u16(p + 2)) << 16; }

float load_f16(const uint8_t* p) { return f16_to_f32(load_u16(p)); }

float float_of_bits(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

uint32_t bits_of_float(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  return bits;
}

// 32 codes from 16 bytes: low nibbles are values 0..15, high nibbles values 16..31.
void nibbles(const uint8_t* qs, int offset, int16_t* code) {
  for (int j = 0; j < 16; ++j) {
    code[j] = static_cast<int16_t>((qs[j] & 15) - offset);
    code[j + 16] = static_cast<int16_t>((qs[j] >> 4) - offset);
  }
}

// The same with a fifth bit: bit j of `high` belongs to value j.
void nibbles_and_bit(const uint8_t* qs, uint32_t high, int offset, int16_t* code) {
  for (int j = 0; j < 16; ++j) {
    code[j] = static_cast<int16_t>(((qs[j] & 15) | (high >> j & 1) << 4) - offset);
    code[j + 16] = static_cast<int16_t>(((qs[j] >> 4) | (high >> (j + 16) & 1) << 4) - offset);
  }
}

void nibbles_by_table(const uint8_t* qs, const int8_t* table, int16_t* code) {
  for (int j = 0; j < 16; ++j) {
    code[j] = table[qs[j] & 15];
    code[j + 16] = table[qs[j] >> 4];
  }
}

// [d f16][qs 16]
void unpack_q4_0(const uint8_t* q, int16_t* code, float* scale, float* min) {
  nibbles(q + 2, 8, code);
  scale[0] = load_f16(q);
  min[0] = 0;
}

// [d f16][m f16][qs 16]
void unpack_q4_1(const uint8_t* q, int16_t* code, float* scale, float* min) {
  nibbles(q + 4, 0, code);
  scale[0] = load_f16(q);
  min[0] = load_f16(q + 2);
}

// [d f16][high bits u32][qs 16]
void unpack_q5_0(const uint8_t* q, int16_t* code, float* scale, float* min) {
  nibbles_and_bit(q + 6, load_u32(q + 2), 16, code);
  scale[0] = load_f16(q);
  min[0] = 0;
}

// [d f16][m f16][high bits u32][qs 16]
void unpack_q5_1(const uint8_t* q, int16_t* code, float* scale, float* min) {
  nibbles_and_bit(q + 8, load_u32(q + 4), 0, code);
  scale[0] = load_f16(q);
  min[0] = load_f16(q + 2);
}

// [d f16][int8 32]
void unpack_q8_0(const uint8_t* q, int16_t* code, float* scale, float* min) {
  for (int j = 0; j < 32; ++j) code[j] = static_cast<int8_t>(q[2 + j]);
  scale[0] = load_f16(q);
  min[0] = 0;
}

// [sub-scales 16: low nibble scale, high nibble minimum][qs 64][d f16][dmin f16]; groups of 16.
// Each half of 128 values has 32 bytes; bit pair s of byte l is value 32 s + l.
void unpack_q2_k(const uint8_t* q, int16_t* code, float* scale, float* min) {
  const uint8_t* qs = q + 16;
  for (int half = 0; half < 2; ++half, qs += 32)
    for (int s = 0; s < 4; ++s, code += 32)
      for (int l = 0; l < 32; ++l) code[l] = qs[l] >> 2 * s & 3;
  const float d = load_f16(q + 80), dmin = load_f16(q + 82);
  for (int g = 0; g < 16; ++g) {
    scale[g] = d * static_cast<float>(q[g] & 15);
    min[g] = -dmin * static_cast<float>(q[g] >> 4);
  }
}

// [high bits 32][qs 64][6-bit sub-scales 12][d f16]; groups of 16, laid out as Q2_K. Bit 4 half + s of high
// byte l adds 4 to value 128 half + 32 s + l; codes are then centred by 4, sub-scales by 32.
void unpack_q3_k(const uint8_t* q, int16_t* code, float* scale, float* min) {
  const uint8_t* qs = q + 32;
  for (int half = 0; half < 2; ++half, qs += 32)
    for (int s = 0; s < 4; ++s, code += 32)
      for (int l = 0; l < 32; ++l)
        code[l] = static_cast<int16_t>((qs[l] >> 2 * s & 3) + (q[l] >> (4 * half + s) & 1) * 4 - 4);
  // Low four bits of sub-scale g: nibble g / 8 of byte g % 8. High two: bit pair g / 4 of byte 8 + g % 4.
  const uint8_t* packed = q + 96;
  const float d = load_f16(q + 108);
  for (int g = 0; g < 16; ++g) {
    const int low = packed[g % 8] >> 4 * (g / 8) & 15;
    const int high = packed[8 + g % 4] >> 2 * (g / 4) & 3;
    scale[g] = d * static_cast<float>((low | high << 4) - 32);
    min[g] = 0;
  }
}

// Eight 6-bit scales and eight 6-bit minima in 12 bytes: bytes 0..3 and 4..7 hold scales and minima 0..3 in
// their low six bits; bytes 8..11 hold the low nibbles of 4..7, whose top two bits sit atop bytes 0..7.
void k_scales(const uint8_t* packed, float d, float dmin, float* scale, float* min) {
  for (int g = 0; g < 4; ++g) {
    const uint8_t a = packed[g], b = packed[g + 4], c = packed[g + 8];
    scale[g] = d * static_cast<float>(a & 63);
    min[g] = -dmin * static_cast<float>(b & 63);
    scale[g + 4] = d * static_cast<float>((c & 15) | a >> 6 << 4);
    min[g + 4] = -dmin * static_cast<float>(c >> 4 | b >> 6 << 4);
  }
}

// [d f16][dmin f16][sub-scales 12][qs 128]; groups of 32. Each 32 bytes hold two groups: low, high nibbles.
void unpack_q4_k(const uint8_t* q, int16_t* code, float* scale, float* min) {
  const uint8_t* qs = q + 16;
  for (int pair = 0; pair < 4; ++pair, qs += 32, code += 64)
    for (int l = 0; l < 32; ++l) {
      code[l] = qs[l] & 15;
      code[l + 32] = qs[l] >> 4;
    }
  k_scales(q + 4, load_f16(q), load_f16(q + 2), scale, min);
}

// [d f16][dmin f16][sub-scales 12][high bits 32][qs 128]; as Q4_K, bit g of high byte l is group g's.
void unpack_q5_k(const uint8_t* q, int16_t* code, float* scale, float* min) {
  const uint8_t *high = q + 16, *qs = q + 48;
  for (int pair = 0; pair < 4; ++pair, qs += 32, code += 64)
    for (int l = 0; l < 32; ++l) {
      code[l] = static_cast<int16_t>((qs[l] & 15) | (high[l] >> 2 * pair & 1) << 4);
      code[l + 32] = static_cast<int16_t>(qs[l] >> 4 | (high[l] >> (2 * pair + 1) & 1) << 4);
    }
  k_scales(q + 4, load_f16(q), load_f16(q + 2), scale, min);
}

// [low nibbles 128][high bit pairs 64][int8 sub-scales 16][d f16]; groups of 16, codes centred by 32.
// In each half: low nibbles of bytes 0..31 and 32..63 are values 0..63, high nibbles values 64..127;
// bit pair s of high byte l belongs to value 32 s + l.
void unpack_q6_k(const uint8_t* q, int16_t* code, float* scale, float* min) {
  const uint8_t *low = q, *high = q + 128;
  for (int half = 0; half < 2; ++half, low += 64, high += 32, code += 128)
    for (int l = 0; l < 32; ++l) {
      code[l] = static_cast<int16_t>(((low[l] & 15) | (high[l] & 3) << 4) - 32);
      code[l + 32] = static_cast<int16_t>(((low[l + 32] & 15) | (high[l] >> 2 & 3) << 4) - 32);
      code[l + 64] = static_cast<int16_t>((low[l] >> 4 | (high[l] >> 4 & 3) << 4) - 32);
      code[l + 96] = static_cast<int16_t>((low[l + 32] >> 4 | high[l] >> 6 << 4) - 32);
    }
  const float d = load_f16(q + 208);
  for (int g = 0; g < 16; ++g) {
    scale[g] = d * static_cast<float>(static_cast<int8_t>(q[192 + g]));
    min[g] = 0;
  }
}

// [d f16][qs 16]
void unpack_iq4_nl(const uint8_t* q, int16_t* code, float* scale, float* min) {
  nibbles_by_table(q + 2, kIQ4Values, code);
  scale[0] = load_f16(q);
  min[0] = 0;
}

// [d f16][sub-scales' high bit pairs u16][their low nibbles 4][qs 128]; groups of 32, sub-scales centred by 32.
void unpack_iq4_xs(const uint8_t* q, int16_t* code, float* scale, float* min) {
  const float d = load_f16(q);
  const uint16_t high = load_u16(q + 2);
  for (int g = 0; g < 8; ++g) {
    nibbles_by_table(q + 8 + 16 * g, kIQ4Values, code + 32 * g);
    const int sub = (q[4 + g / 2] >> 4 * (g % 2) & 15) | (high >> 2 * g & 3) << 4;
    scale[g] = d * static_cast<float>(sub - 32);
    min[g] = 0;
  }
}

// [e uint8][qs 16]. Half of 2^(e - 127), since the codes are doubled; e = 0 and 1 give subnormal floats.
void unpack_mxfp4(const uint8_t* q, int16_t* code, float* scale, float* min) {
  nibbles_by_table(q + 1, kDoubledE2M1, code);
  const uint32_t e = q[0];
  scale[0] = float_of_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23);
  min[0] = 0;
}

using UnpackQblock = void (*)(const uint8_t* q, int16_t* code, float* scale, float* min);
using UnpackRow = void (*)(const uint8_t* src, int64_t n, int16_t* code, float* scale, float* min);

// One loop for each format, so that the compiler may inline the qblock's function into it.
template <UnpackQblock unpack, int qblock_size, int qblock_bytes, int group>
void unpack_row(const uint8_t* src, int64_t n, int16_t* code, float* scale, float* min) {
  for (int64_t b = 0; b < n / qblock_size; ++b) {
    unpack(src, code, scale, min);
    src += qblock_bytes;
    code += qblock_size;
    scale += qblock_size / group;
    min += qblock_size / group;
  }
}

struct Format {
  int gguf_id;
  int qblock_size, qblock_bytes;
  CodeShape shape;
  UnpackRow unpack;
};

template <UnpackQblock unpack, int qblock_size, int qblock_bytes, int group>
constexpr Format format(int gguf_id, bool has_min, int code_min, int code_max) {
  static_assert(qblock_size <= MAX_QBLOCK && qblock_size / group <= MAX_GROUPS, "dequantize's buffers");
  return {gguf_id, qblock_size, qblock_bytes, {group, has_min, code_min, code_max},
          unpack_row<unpack, qblock_size, qblock_bytes, group>};
}

constexpr Format FORMATS[] = {
    format<unpack_q4_0, 32, 18, 32>(2, false, -8, 7),
    format<unpack_q4_1, 32, 20, 32>(3, true, 0, 15),
    format<unpack_q5_0, 32, 22, 32>(6, false, -16, 15),
    format<unpack_q5_1, 32, 24, 32>(7, true, 0, 31),
    format<unpack_q8_0, 32, 34, 32>(8, false, -128, 127),
    format<unpack_q2_k, 256, 84, 16>(10, true, 0, 3),
    format<unpack_q3_k, 256, 110, 16>(11, false, -4, 3),
    format<unpack_q4_k, 256, 144, 32>(12, true, 0, 15),
    format<unpack_q5_k, 256, 176, 32>(13, true, 0, 31),
    format<unpack_q6_k, 256, 210, 16>(14, false, -32, 31),
    format<unpack_iq4_nl, 32, 18, 32>(20, false, -127, 113),
    format<unpack_iq4_xs, 256, 136, 32>(23, false, -127, 113),
    format<unpack_mxfp4, 32, 17, 32>(39, false, -12, 12),
};

const Format* find_format(int gguf_id) {
  for (const Format& row : FORMATS)
    if (row.gguf_id == gguf_id) return &row;
  return nullptr;
}

void dequantize_codes(const Format& format, const uint8_t* src, int64_t n, float* out) {
  int16_t code[MAX_QBLOCK];
  float scale[MAX_GROUPS], min[MAX_GROUPS];
  const int group = format.shape.group;
  for (int64_t b = 0; b < n / format.qblock_size; ++b, src += format.qblock_bytes) {
    format.unpack(src, format.qblock_size, code, scale, min);
    for (int g = 0; g < format.qblock_size / group; ++g, out += group)
      for (int i = 0; i < group; ++i) out[i] = scale[g] * static_cast<float>(code[g * group + i]) + min[g];
  }
}

}  // namespace

bool code_shape(int gguf_id, CodeShape* out) {
  const Format* format = find_format(gguf_id);
  if (format != nullptr) *out = format->shape;
  return format != nullptr;
}

int64_t stored_bytes(int gguf_id, int64_t n) {
  if (gguf_id == F32) return 4 * n;
  if (gguf_id == F16 || gguf_id == BF16) return 2 * n;
  const Format* format = find_format(gguf_id);
  return format == nullptr || n % format->qblock_size != 0 ? -1 : n / format->qblock_size * format->qblock_bytes;
}

void unpack_codes(int gguf_id, const uint8_t* src, int64_t n, int16_t* code, float* scale, float* min) {
  const Format* format = find_format(gguf_id);
  if (format != nullptr) format->unpack(src, n, code, scale, min);
}

bool dequantize(int gguf_id, const uint8_t* src, int64_t n, float* out) {
  if (gguf_id == F32) {
    for (int64_t i = 0; i < n; ++i) out[i] = float_of_bits(load_u32(src + 4 * i));
  } else if (gguf_id == F16) {
    for (int64_t i = 0; i < n; ++i) out[i] = load_f16(src + 2 * i);
  } else if (gguf_id == BF16) {
    for (int64_t i = 0; i < n; ++i) out[i] = float_of_bits(static_cast<uint32_t>(load_u16(src + 2 * i)) << 16);
  } else if (const Format* format = find_format(gguf_id)) {
    dequantize_codes(*format, src, n, out);
  } else {
    return false;
  }
  return true;
}

float f16_to_f32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t exponent = h >> 10 & 31, mantissa = h & 1023;
  // A subnormal is mantissa * 2^-24, made without float32 subnormals, which a host may flush to zero.
  const uint32_t subnormal = bits_of_float(static_cast<float>(mantissa) * 0x1p-24f);
  const uint32_t normal = (exponent + 112) << 23 | mantissa << 13;
  const uint32_t special = 0x7f800000u | mantissa << 13;  // infinity, or NaN with its payload
  return float_of_bits(sign | (exponent == 0 ? subnormal : exponent == 31 ? special : normal));
}

uint16_t f32_to_f16(float f) {
  const uint32_t bits = bits_of_float(f);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  uint32_t half;
  if (magnitude > 0x7f800000) {  // NaN: keep the payload's top, stay quiet
    half = 0x7e00 | (magnitude >> 13 & 0x3ff);
  } else if (magnitude >= 0x47800000) {  // 65536 and more
    half = 0x7c00;
  } else if (magnitude >= 0x38800000) {  // 2^-14 and more: a carry out of the mantissa is the right answer
    const uint32_t rebased = magnitude - (112u << 23);
    half = (rebased + 0xfff + (rebased >> 13 & 1)) >> 13;
  } else {  // adding 0.5, whose last place is 2^-24, rounds to the subnormals' step
    half = bits_of_float(float_of_bits(magnitude) + 0.5f) - bits_of_float(0.5f);
  }
  return static_cast<uint16_t>(sign | half);
}

}  // namespace headrace
