// SPDX-License-Identifier: Apache-2.0
// The definition of every kernel in portable scalar C++: slow, plain, and what the others are tested against.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "codebooks.h"
#include "kernels.h"
#include "unpack.h"

namespace headrace {
namespace {

float half_at(const uint8_t* p, int64_t i) {
  uint16_t h;
  std::memcpy(&h, p + 2 * i, 2);
  return f16_to_f32(h);
}

// Code k of row r among a record's codes.
int32_t code_at(Kind kind, const uint8_t* codes, int r, int k) {
  const int place = r * 4 + k % 4;
  auto nibble = [&] { return codes[k % 16 / 4 * 32 + place] >> (k < 16 ? 0 : 4) & 15; };
  auto bit = [&](int plane) { return codes[plane + place] >> k / 4 & 1; };
  auto pair = [&](int plane) { return codes[plane + k / 16 * 32 + place] >> k % 16 / 4 * 2 & 3; };
  switch (kind) {
    case Kind::Q4: return nibble();
    case Kind::Q5: return (nibble() | bit(128) << 4) - 16;
    case Kind::Q5M: return nibble() | bit(128) << 4;
    case Kind::Q6G16: return (nibble() | pair(128) << 4) - 32;
    case Kind::IQ4: return kIQ4Values[nibble()];
    case Kind::MXFP4: return kDoubledE2M1[nibble()];
    case Kind::Q3G16: return (pair(0) | bit(64) << 2) - 4;
    case Kind::Q2G16M: return pair(0);
    default: return static_cast<int8_t>(codes[k / 4 * 32 + place]);
  }
}

// Sum over one record (32 columns) of row r for a quantised kind.
float record_product(Kind kind, const uint8_t* record, int r, const int8_t* q, float scale, float sum32,
                     const float* sum16) {
  const int parts = num_parts(kind), group = kGroup / parts;
  const uint8_t* codes = record + header_bytes(kind);
  float sum = 0;
  for (int part = 0; part < parts; ++part) {
    int32_t dot = 0;
    for (int k = part * group; k < (part + 1) * group; ++k) dot += code_at(kind, codes, r, k) * q[k];
    sum += half_at(record, part * 8 + r) * scale * static_cast<float>(dot);
    if (has_minimums(kind)) sum += half_at(record, (parts + part) * 8 + r) * (parts == 2 ? sum16[part] : sum32);
  }
  return sum;
}

float float_at(Kind kind, const uint8_t* data, int64_t index) {
  if (kind == Kind::F32) {
    float f;
    std::memcpy(&f, data + 4 * index, 4);
    return f;
  }
  if (kind == Kind::F16) return half_at(data, index);
  uint16_t h;
  std::memcpy(&h, data + 2 * index, 2);
  const uint32_t bits = static_cast<uint32_t>(h) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

void matmul(const Matrix& w, int64_t block_begin, int64_t block_end, const Activations& a, int64_t token_begin,
            int64_t token_end, const Destination& to) {
  const int64_t K = w.num_columns;
  for (int64_t block = block_begin; block < block_end; ++block) {
    const uint8_t* data = w.data + block * w.block_bytes();
    for (int64_t t = token_begin; t < token_end; ++t) {
      for (int r = 0; r < kRowBlock; ++r) {
        const int64_t n = block * kRowBlock + r;
        if (n >= w.num_rows) break;
        float sum = 0;
        if (is_quantized(w.kind)) {
          const int64_t groups = K / kGroup;
          for (int64_t g = 0; g < groups; ++g)
            sum += record_product(w.kind, data + g * record_bytes(w.kind), r, a.q + t * K + g * kGroup,
                                  a.scale[t * groups + g], a.sum32[t * groups + g], a.sum16 + (t * groups + g) * 2);
          sum *= w.multiplier;
        } else {
          for (int64_t k = 0; k < K; ++k) sum += float_at(w.kind, data, k * kRowBlock + r) * a.x[t * K + k];
        }
        if (to.bias) sum += to.bias[n];
        if (to.residual) sum += to.residual[t * to.stride + n];
        to.y[t * to.stride + n] = sum;
      }
    }
  }
}

void quantize(const float* x, int64_t n, int8_t* q, float* scale, float* sum32, float* sum16) {
  for (int64_t g = 0; g < n / kGroup; ++g) {
    const float* group = x + g * kGroup;
    float largest = 0;
    bool finite = true;
    for (int i = 0; i < kGroup; ++i) {
      largest = std::max(largest, std::fabs(group[i]));
      finite = finite && std::isfinite(group[i]);
    }
    const bool live = finite && largest >= kSmallestQuantized;
    const float s = !finite ? NAN : live ? largest / 127.0f : 0.0f;
    int32_t sums[2] = {0, 0};
    for (int i = 0; i < kGroup; ++i) {
      const int32_t v = live ? static_cast<int32_t>(std::nearbyint(group[i] * (127.0f / largest))) : 0;
      q[g * kGroup + i] = static_cast<int8_t>(v);
      sums[i / 16] += v;
    }
    scale[g] = s;
    sum16[2 * g] = s * static_cast<float>(sums[0]);
    sum16[2 * g + 1] = s * static_cast<float>(sums[1]);
    sum32[g] = s * static_cast<float>(sums[0] + sums[1]);
  }
}

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* y) {
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += static_cast<double>(x[i]) * x[i];
  const float factor = static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(n) + eps));
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * factor * weight[i];
}

void halves(const float* x, int64_t n, uint16_t* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = f32_to_f16(x[i]);
}

void gated(const float* gate, const float* up, int64_t n, Activation activation, float* y) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = gate[i];
    float value;
    if (activation == Activation::Silu)
      value = g / (1.0f + std::exp(-g));
    else
      value = 0.5f * g * (1.0f + std::tanh(0.7978845608028654f * (g + 0.044715f * g * g * g)));
    y[i] = value * up[i];
  }
}

// One query head over places [begin, end): part gets K unnormalised values, the maximum score, the weight.
void attend(const AttentionShape& shape, const AttentionRow& row, const float* q, int32_t g, int64_t begin,
            int64_t end, float* part) {
  const int64_t K = shape.head_dim, G = shape.num_kv_heads, S = kBlockSize;
  std::vector<float> score;
  float largest = -1e30f;
  for (int64_t j = begin; j < end; ++j) {
    const uint16_t* key = row.keys + (row.blocks[j / S] * G + g) * K * S + j % S;
    float dot = 0;
    for (int64_t d = 0; d < K; ++d) dot += q[d] * f16_to_f32(key[d * S]);
    dot *= shape.scale;
    if (shape.softcap > 0) dot = shape.softcap * std::tanh(dot / shape.softcap);
    score.push_back(dot);
    largest = std::max(largest, dot);
  }
  float total = 0;
  std::fill(part, part + K, 0.0f);
  for (int64_t j = begin; j < end; ++j) {
    const float p = std::exp(score[static_cast<size_t>(j - begin)] - largest);
    const uint16_t* value = row.values + ((row.blocks[j / S] * G + g) * S + j % S) * K;
    total += p;
    for (int64_t d = 0; d < K; ++d) part[d] += p * f16_to_f32(value[d]);
  }
  part[K] = largest;
  part[K + 1] = total;
}

void attention_parts(const AttentionShape& shape, const AttentionRow& row, int64_t token_begin, int64_t token_end,
                     int32_t g, int64_t split_begin, int64_t split_end, int64_t num_splits, float* parts) {
  const int64_t K = shape.head_dim;
  const int32_t share = shape.num_heads / shape.num_kv_heads;
  for (int64_t t = token_begin; t < token_end; ++t) {
    const int64_t position = row.first_position + t;
    for (int32_t h = g * share; h < (g + 1) * share; ++h) {
      const int64_t query = t * shape.num_heads + h;
      for (int64_t split = split_begin; split < split_end; ++split) {
        const int64_t begin = std::max(split * kKeySplit, shape.first_place(position));
        const int64_t end = std::min((split + 1) * kKeySplit, position + 1);
        attend(shape, row, row.q + query * K, g, begin, std::max(begin, end),
               parts + (query * num_splits + split) * shape.part_floats());
      }
    }
  }
}

// Adds one part to running sums of the same form.
void merge_into(const AttentionShape& shape, float* sums, const float* part) {
  const int64_t K = shape.head_dim;
  const float next = std::max(sums[K], part[K]);
  const float old_factor = std::exp(sums[K] - next), new_factor = std::exp(part[K] - next);
  sums[K] = next;
  sums[K + 1] = sums[K + 1] * old_factor + part[K + 1] * new_factor;
  for (int64_t d = 0; d < K; ++d) sums[d] = sums[d] * old_factor + part[d] * new_factor;
}

void normalise(const AttentionShape& shape, const float* sums, float* out) {
  for (int64_t d = 0; d < shape.head_dim; ++d) out[d] = sums[d] / sums[shape.head_dim + 1];
}

void merge_parts(const AttentionShape& shape, const float* parts, int64_t num_parts, float* out) {
  std::vector<float> sums(parts, parts + shape.part_floats());
  for (int64_t i = 1; i < num_parts; ++i) merge_into(shape, sums.data(), parts + i * shape.part_floats());
  normalise(shape, sums.data(), out);
}

// Adds splits [begin, end), as far as the token at `position` sees them, to sums that hold all before them;
// `empty`: there are none.
void sum_splits(const AttentionShape& shape, const AttentionRow& row, const float* q, int64_t position, int32_t g,
                int64_t begin, int64_t end, bool empty, float* sums) {
  std::vector<float> part(static_cast<size_t>(shape.part_floats()));
  for (int64_t split = begin; split < end; ++split) {
    const int64_t first = std::max(split * kKeySplit, shape.first_place(position));
    const int64_t last = std::min((split + 1) * kKeySplit, position + 1);
    attend(shape, row, q, g, first, std::max(first, last), empty ? sums : part.data());
    if (!empty) merge_into(shape, sums, part.data());
    empty = false;
  }
}

// Only whole splits: the rest of what is shared is summed up row by row.
void attention_shared(const AttentionShape& shape, const AttentionRow& row, const SharedQuery* queries,
                      int64_t num_queries, int32_t g, int64_t num_places) {
  for (int64_t i = 0; i < num_queries; ++i)
    sum_splits(shape, row, queries[i].q, queries[i].position, g, 0, num_places / kKeySplit, true, queries[i].sums);
}

void attention(const AttentionShape& shape, const AttentionRow& row, int64_t token_begin, int64_t token_end,
               int32_t g) {
  const int64_t K = shape.head_dim, F = shape.part_floats();
  const int32_t share = shape.num_heads / shape.num_kv_heads;
  std::vector<float> sums(static_cast<size_t>(F));
  for (int64_t t = token_begin; t < token_end; ++t) {
    const int64_t position = row.first_position + t;
    for (int32_t h = g * share; h < (g + 1) * share; ++h) {
      const int64_t query = t * shape.num_heads + h;
      const int64_t num_summed = row.num_summed / kKeySplit;
      if (num_summed) {
        const float* shared = row.sums + query * shape.shared_floats();
        std::copy(shared, shared + F, sums.begin());
      }
      sum_splits(shape, row, row.q + query * K, position, g, num_summed, position / kKeySplit + 1, !num_summed,
                 sums.data());
      normalise(shape, sums.data(), row.out + query * K);
    }
  }
}

}  // namespace

const Kernels& reference_kernels() {
  static const Kernels table{"reference", matmul, quantize, rms_norm, halves, gated, attention, attention_shared,
                             attention_parts, merge_parts};
  return table;
}

}  // namespace headrace
