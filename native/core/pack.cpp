// SPDX-License-Identifier: Apache-2.0
#include "pack.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include "codebooks.h"
#include "unpack.h"

namespace headrace {

void PackedMatrix::Free::operator()(uint8_t* p) const { std::free(p); }

namespace {

constexpr int kF32 = 0, kF16 = 1, kBF16 = 30, kQ4_0 = 2, kQ4_1 = 3, kQ5_0 = 6, kQ5_1 = 7, kQ8_0 = 8;
constexpr int kQ2_K = 10, kQ3_K = 11, kQ5_K = 13, kQ6_K = 14, kIQ4_NL = 20, kIQ4_XS = 23, kMXFP4 = 39;
constexpr float kQ4_0Centre = 8;  // codes of 0 .. 15 stand for -8 .. 7
constexpr size_t kLargePage = size_t{2} << 20;

Kind kind_of(int gguf_id) {
  switch (gguf_id) {
    case kF32: return Kind::F32;
    case kF16: return Kind::F16;
    case kBF16: return Kind::BF16;
    case kQ5_0: return Kind::Q5;
    case kQ5_1: return Kind::Q5M;
    case kQ5_K: return Kind::Q5M;
    case kQ6_K: return Kind::Q6G16;
    case kIQ4_NL: return Kind::IQ4;
    case kIQ4_XS: return Kind::IQ4;
    case kMXFP4: return Kind::MXFP4;
    case kQ3_K: return Kind::Q3G16;
    case kQ2_K: return Kind::Q2G16M;
    default: break;
  }
  CodeShape shape;
  if (!code_shape(gguf_id, &shape)) throw std::invalid_argument("unknown tensor type " + std::to_string(gguf_id));
  // Signed 4-bit codes of group 32 become unsigned ones with a minimum of -8 scales.
  if (shape.group == 32 && shape.code_max - shape.code_min <= 15) return Kind::Q4;
  if (shape.group == 32) return shape.has_min ? Kind::Q8M : Kind::Q8;
  return shape.has_min ? Kind::Q8G16M : Kind::Q8G16;
}

// Scales of these are f16 in the file, so they are kept as they are.
bool has_half_scales(int gguf_id) {
  return gguf_id == kQ4_0 || gguf_id == kQ4_1 || gguf_id == kQ5_0 || gguf_id == kQ5_1 || gguf_id == kQ8_0 ||
         gguf_id == kIQ4_NL;
}

void store_half(uint8_t* at, float value) {
  const uint16_t h = f32_to_f16(value);
  std::memcpy(at, &h, 2);
}

// Eight rows of one of the types whose bytes already lie as the packed form wants them: copied four at a time.
// Source blocks: header bytes (scale, and minimum where has_min), then 4 * words bytes.
void copy_block(const uint8_t* const (&row)[kRowBlock], int64_t groups, int header, int words, int packed_header,
                uint8_t* out) {
  const int64_t qblock = header + 4 * words;
  const int64_t record = packed_header + int64_t{32} * words;
  for (int64_t g = 0; g < groups; ++g, out += record)
    for (int r = 0; r < kRowBlock; ++r) {
      if (!row[r]) continue;
      const uint8_t* in = row[r] + g * qblock;
      std::memcpy(out + 2 * r, in, 2);
      if (header == 4) std::memcpy(out + 16 + 2 * r, in + 2, 2);
      for (int j = 0; j < words; ++j) std::memcpy(out + packed_header + 32 * j + 4 * r, in + header + 4 * j, 4);
    }
}

void q4_0_minimums(int64_t groups, uint8_t* out) {
  for (int64_t g = 0; g < groups; ++g, out += record_bytes(Kind::Q4))
    for (int r = 0; r < kRowBlock; ++r) {
      uint16_t h;
      std::memcpy(&h, out + 2 * r, 2);
      store_half(out + 16 + 2 * r, -kQ4_0Centre * f16_to_f32(h));
    }
}

struct Codes {
  std::vector<int16_t> code;
  std::vector<float> scale, min;
};

// Where a value stands first in a codebook.
struct Places {
  uint8_t of[256] = {};
  constexpr explicit Places(const int8_t (&values)[16]) {
    for (int i = 15; i >= 0; --i) of[static_cast<uint8_t>(values[i])] = static_cast<uint8_t>(i);
  }
};
constexpr Places kIQ4Places(kIQ4Values), kMXFP4Places(kDoubledE2M1);

// Codes of one row of a record to their bytes; `shift` is added to each. Bits of others are left as they are.
void write_codes(Kind kind, int shift, const int16_t* code, int r, uint8_t* codes) {
  auto value = [&](int k) { return static_cast<uint8_t>(code[k] + shift); };
  auto byte = [&](int plane, int j, int k) -> uint8_t& { return codes[plane + j * 32 + r * 4 + k % 4]; };
  auto nibbles = [&](auto value_of) {
    for (int k = 0; k < 16; ++k)
      byte(0, k / 4, k) = static_cast<uint8_t>((value_of(k) & 15) | (value_of(k + 16) & 15) << 4);
  };
  auto bits = [&](int plane, int from) {
    for (int i = 0; i < 4; ++i) {
      int of_byte = 0;
      for (int j = 0; j < 8; ++j) of_byte |= (value(4 * j + i) >> from & 1) << j;
      byte(plane, 0, i) = static_cast<uint8_t>(of_byte);
    }
  };
  auto pairs = [&](int plane, int from) {
    for (int half = 0; half < 2; ++half)
      for (int i = 0; i < 4; ++i) {
        int of_byte = 0;
        for (int j = 0; j < 4; ++j) of_byte |= (value(16 * half + 4 * j + i) >> from & 3) << 2 * j;
        byte(plane, half, i) = static_cast<uint8_t>(of_byte);
      }
  };
  switch (kind) {
    case Kind::Q4: nibbles(value); break;
    case Kind::Q5:
    case Kind::Q5M: nibbles(value), bits(128, 4); break;
    case Kind::Q6G16: nibbles(value), pairs(128, 4); break;
    case Kind::IQ4: nibbles([&](int k) { return kIQ4Places.of[static_cast<uint8_t>(code[k])]; }); break;
    case Kind::MXFP4: nibbles([&](int k) { return kMXFP4Places.of[static_cast<uint8_t>(code[k])]; }); break;
    case Kind::Q3G16: pairs(0, 0), bits(64, 2); break;
    case Kind::Q2G16M: pairs(0, 0); break;
    default:
      for (int k = 0; k < kGroup; ++k) byte(0, k / 4, k) = value(k);
  }
}

// What is added to a format's codes to make them those of the kind.
int code_shift(Kind kind, const CodeShape& shape) {
  if (kind == Kind::Q4 || kind == Kind::Q5 || kind == Kind::Q6G16 || kind == Kind::Q3G16) return -shape.code_min;
  return 0;
}

void write_row(Kind kind, int shift, const Codes& codes, int r, int64_t columns, float inverse_multiplier,
               uint8_t* out) {
  const int64_t groups = columns / kGroup, record = record_bytes(kind);
  const int parts = num_parts(kind), header = header_bytes(kind);
  for (int64_t g = 0; g < groups; ++g, out += record) {
    for (int part = 0; part < parts; ++part) {
      const float scale = codes.scale[g * parts + part] * inverse_multiplier;
      float min = codes.min[g * parts + part] * inverse_multiplier;
      if (kind == Kind::Q4) min -= static_cast<float>(shift) * scale;
      store_half(out + part * 16 + 2 * r, scale);
      if (has_minimums(kind)) store_half(out + (parts + part) * 16 + 2 * r, min);
    }
    write_codes(kind, shift, codes.code.data() + g * kGroup, r, out + header);
  }
}

}  // namespace

PackedMatrix::PackedMatrix(int gguf_id, const uint8_t* data, int64_t num_stored, int64_t rows, int64_t columns,
                           Team& team) {
  const Kind kind = kind_of(gguf_id);
  const int64_t source_row = stored_bytes(gguf_id, columns);
  if (source_row < 0) throw std::invalid_argument(std::to_string(columns) + " columns do not fill whole qblocks");
  if (rows < 1 || num_stored != rows * source_row)
    throw std::invalid_argument(std::to_string(rows) + " rows of " + std::to_string(columns) + " columns are not " +
                                std::to_string(num_stored) + " bytes");
  view_ = Matrix{kind, rows, columns, nullptr, 1.0f};
  const size_t bytes = (static_cast<size_t>(num_bytes()) + 63) / 64 * 64;
  // Large pages save page faults while packing and translation misses in every step after it.
  const size_t alignment = bytes >= 2 * kLargePage ? kLargePage : 64;
  const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  bytes_.reset(static_cast<uint8_t*>(std::aligned_alloc(alignment, rounded ? rounded : alignment)));
  if (!bytes_) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
  if (alignment > 64) madvise(bytes_.get(), rounded, MADV_HUGEPAGE);
#endif
  view_.data = bytes_.get();

  CodeShape shape{kGroup, false, 0, 0};
  if (is_quantized(kind)) code_shape(gguf_id, &shape);
  const bool copies = gguf_id == kQ4_0 || gguf_id == kQ4_1 || gguf_id == kQ8_0;
  const int64_t num_blocks = view_.num_blocks();
  const int64_t chunk = std::max<int64_t>(1, num_blocks / (8 * team.size()));

  // Where scales are products (K-quants, MXFP4), find their range first: one power of two brings them into f16's.
  float multiplier = 1.0f;
  if (is_quantized(kind) && !has_half_scales(gguf_id)) {
    std::vector<float> largest(static_cast<size_t>(team.size()), 0.0f);
    std::atomic<int64_t> next{0};
    team.run([&](int thread) {
      Codes codes{std::vector<int16_t>(columns), std::vector<float>(columns / shape.group),
                  std::vector<float>(columns / shape.group)};
      for (int64_t row; (row = next.fetch_add(1)) < rows;) {
        unpack_codes(gguf_id, data + row * source_row, columns, codes.code.data(), codes.scale.data(), codes.min.data());
        for (size_t i = 0; i < codes.scale.size(); ++i)
          largest[thread] = std::max({largest[thread], std::fabs(codes.scale[i]), std::fabs(codes.min[i])});
      }
    });
    const float top = *std::max_element(largest.begin(), largest.end());
    if (top > 0 && std::isfinite(top)) {
      int exponent;
      std::frexp(top, &exponent);
      multiplier = std::ldexp(1.0f, exponent - 12);  // the largest becomes 2**11 to 2**12, eight of it still fit
    }
  }
  view_.multiplier = multiplier;

  std::atomic<int64_t> next{0};
  team.run([&](int) {
    Codes codes;
    if (is_quantized(kind) && !copies)
      codes = Codes{std::vector<int16_t>(columns), std::vector<float>(columns / shape.group),
                    std::vector<float>(columns / shape.group)};
    const int shift = code_shift(kind, shape);
    for (int64_t begin; (begin = next.fetch_add(chunk)) < num_blocks;)
      for (int64_t block = begin; block < std::min(num_blocks, begin + chunk); ++block) {
        uint8_t* out = bytes_.get() + block * view_.block_bytes();
        const uint8_t* row[kRowBlock];
        bool full = true;
        for (int r = 0; r < kRowBlock; ++r) {
          const int64_t n = block * kRowBlock + r;
          row[r] = n < rows ? data + n * source_row : nullptr;
          full = full && row[r];
        }
        if (!full) std::memset(out, 0, static_cast<size_t>(view_.block_bytes()));
        if (copies) {
          const int header = gguf_id == kQ4_1 ? 4 : 2;
          copy_block(row, columns / kGroup, header, gguf_id == kQ8_0 ? 8 : 4, gguf_id == kQ8_0 ? 16 : 32, out);
          if (gguf_id == kQ4_0) q4_0_minimums(columns / kGroup, out);
          continue;
        }
        for (int r = 0; r < kRowBlock; ++r) {
          if (!row[r]) continue;
          if (is_quantized(kind)) {
            unpack_codes(gguf_id, row[r], columns, codes.code.data(), codes.scale.data(), codes.min.data());
            write_row(kind, shift, codes, r, columns, 1.0f / multiplier, out);
          } else if (kind == Kind::F32) {
            for (int64_t k = 0; k < columns; ++k) std::memcpy(out + (k * kRowBlock + r) * 4, row[r] + 4 * k, 4);
          } else {
            for (int64_t k = 0; k < columns; ++k) std::memcpy(out + (k * kRowBlock + r) * 2, row[r] + 2 * k, 2);
          }
        }
      }
  });
}

PackedMatrix::PackedMatrix(int gguf_id, const uint8_t* packed, int64_t num_packed, int64_t rows, int64_t columns,
                           float multiplier, std::shared_ptr<const void> owner)
    : owner_(std::move(owner)), view_{kind_of(gguf_id), rows, columns, packed, multiplier} {
  if (rows < 1 || columns < 1 || stored_bytes(gguf_id, columns) < 0 || num_packed != num_bytes())
    throw std::invalid_argument(std::to_string(num_packed) + " packed bytes are not " + std::to_string(rows) +
                                " rows of " + std::to_string(columns) + " columns");
  if (reinterpret_cast<uintptr_t>(packed) % 64) throw std::invalid_argument("packed bytes are not 64-byte aligned");
  if (!std::isfinite(multiplier) || multiplier <= 0)
    throw std::invalid_argument("a multiplier of " + std::to_string(multiplier) + " is not one");
}

}  // namespace headrace
