// SPDX-License-Identifier: Apache-2.0
// The kernel table: every hot loop as a plain function on buffers and shapes. native/ref/ defines each in
// portable scalar code; an ISA's file replaces entries. A kernel never hears of a request.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace headrace {

// Packed matrices: N rows in blocks of 8, K columns. All of a block's record for one group lies together,
// so that a product reads memory once, in order. "f16" are IEEE half floats.
enum class Kind : int32_t {
  Q4 = 0,     // group 32: 8 f16 scales, 8 f16 minimums, 128 bytes: byte[(k%16)/4][row][k%4], low nibble k < 16
  Q8 = 1,     // group 32: 8 f16 scales, 256 bytes: int8[k/4][row][k%4]
  Q8M = 2,    // as Q8 with 8 f16 minimums after the scales
  Q8G16 = 3,  // group 16: 2 x 8 f16 scales, 256 bytes as Q8
  Q8G16M = 4, // as Q8G16 with 2 x 8 f16 minimums after the scales
  F32 = 5,    // float[k][row]
  F16 = 6,    // half[k][row]
  BF16 = 7,   // bfloat16[k][row]
  // Below, codes are unsigned and their bits lie apart. "Nibbles" are the 128 bytes of Q4; a plane of bits is 32 bytes,
  // byte[row][k%4], bit k/4; a plane of pairs of bits is 64 bytes, byte[k/16][row][k%4], pair (k%16)/4.
  Q5 = 8,       // group 32: 8 f16 scales, nibbles, a plane of fifth bits; 16 stands for 0
  Q5M = 9,      // as Q5 with 8 f16 minimums after the scales; 0 stands for 0
  Q6G16 = 10,   // group 16: 2 x 8 f16 scales, nibbles, a plane of their upper pairs; 32 stands for 0
  IQ4 = 11,     // group 32: 8 f16 scales, nibbles that are places in kIQ4Values
  MXFP4 = 12,   // as IQ4, places in kDoubledE2M1
  Q3G16 = 13,   // group 16: 2 x 8 f16 scales, a plane of pairs, a plane of third bits; 4 stands for 0
  Q2G16M = 14,  // group 16: 2 x 8 f16 scales, 2 x 8 f16 minimums, a plane of pairs
};

constexpr int kRowBlock = 8;
constexpr int kGroup = 32;
constexpr int kHalfGroup = 16;
constexpr float kSmallestQuantized = 1e-30f;  // a group of smaller activations is 0: 127 / 1e-37 is no float

constexpr bool is_quantized(Kind kind) { return kind < Kind::F32 || kind > Kind::BF16; }

// Of a quantised kind: scales of a row in one record, and whether there is a minimum beside each.
constexpr int num_parts(Kind kind) {
  return kind == Kind::Q8G16 || kind == Kind::Q8G16M || kind == Kind::Q6G16 || kind == Kind::Q3G16 ||
                 kind == Kind::Q2G16M ? 2 : 1;
}
constexpr bool has_minimums(Kind kind) {
  return kind == Kind::Q4 || kind == Kind::Q8M || kind == Kind::Q8G16M || kind == Kind::Q5M || kind == Kind::Q2G16M;
}
// Bytes before the codes of a record.
constexpr int header_bytes(Kind kind) { return 2 * kRowBlock * num_parts(kind) * (has_minimums(kind) ? 2 : 1); }

// Bytes of one record: 8 rows x 32 columns of a quantised kind, 8 rows x 1 column of a float kind.
constexpr int64_t record_bytes(Kind kind) {
  switch (kind) {
    case Kind::Q4: return 160;
    case Kind::Q8: return 272;
    case Kind::Q8M: return 288;
    case Kind::Q8G16: return 288;
    case Kind::Q8G16M: return 320;
    case Kind::Q5: return 176;
    case Kind::Q5M: return 192;
    case Kind::Q6G16: return 224;
    case Kind::IQ4: return 144;
    case Kind::MXFP4: return 144;
    case Kind::Q3G16: return 128;
    case Kind::Q2G16M: return 128;
    case Kind::F32: return 32;
    case Kind::F16: return 16;
    case Kind::BF16: return 16;
  }
  return 0;
}

struct Matrix {
  Kind kind;
  int64_t num_rows;      // N, the last block is padded with zeros
  int64_t num_columns;   // K
  const uint8_t* data;   // 64-byte aligned, blocks in order
  float multiplier;      // every scale and minimum is multiplied by it
  int64_t block_bytes() const {
    return record_bytes(kind) * (is_quantized(kind) ? num_columns / kGroup : num_columns);
  }
  int64_t num_blocks() const { return (num_rows + kRowBlock - 1) / kRowBlock; }
};

constexpr int kPanelTokens = 16;

// What 16 tokens bring to one group of 32 columns, together: rows of q by themselves lie K bytes apart, which for a
// power of two is one place of a cache. Sums as in Activations.
struct alignas(64) TokenPanel {
  int8_t q[kPanelTokens][kGroup];
  float scale[kPanelTokens], sum32[kPanelTokens], sum16[2][kPanelTokens];
};

// Input of a product. Quantised kinds read q, scale and sums; float kinds read x. Row t starts at t * K
// (q, x), t * K/32 (scale, sum32), t * K/16 (sum16).
struct Activations {
  const float* x;
  const int8_t* q;      // -127..127
  const float* scale;   // x ~ scale * q
  const float* sum32;   // scale * sum of 32 q
  const float* sum16;   // scale * sum of 16 q
  // The quantised input once more, token t and group g at panels[t / 16 * K/32 + g], place t % 16; or null.
  const TokenPanel* panels;
};

// One token's quantised input (q, scale, sums from its first column on) to its place in the panels of all tokens.
inline void put_in_panels(const Activations& of, int64_t num_columns, int64_t token, TokenPanel* panels) {
  const int64_t groups = num_columns / kGroup, place = token % kPanelTokens;
  TokenPanel* panel = panels + token / kPanelTokens * groups;
  for (int64_t g = 0; g < groups; ++g, ++panel) {
    std::memcpy(panel->q[place], of.q + g * kGroup, kGroup);
    panel->scale[place] = of.scale[g];
    panel->sum32[place] = of.sum32[g];
    panel->sum16[0][place] = of.sum16[2 * g];
    panel->sum16[1][place] = of.sum16[2 * g + 1];
  }
}

// Where a product's rows go: y[t * stride + n] = sum (+ bias[n]) (+ residual[t * stride + n]).
struct Destination {
  float* y;
  int64_t stride;
  const float* bias;      // (N,) or null
  const float* residual;  // same stride as y, may be y, or null
};

// One layer's paged keys and values of one row. keys [block][G][K][S], values [block][G][S][K], f16.
struct AttentionRow {
  const uint16_t* keys;
  const uint16_t* values;
  const int32_t* blocks;   // block ids of the row
  int64_t first_position;  // position of the row's token 0 in q
  const float* q;          // (num_new, H * K) of the row
  float* out;              // (num_new, H * K) of the row
  // Where others share the row's first blocks: their keys are summed up already, for (num_new, H) queries, each
  // shared_floats(). Null: none.
  const float* sums = nullptr;
  int64_t num_summed = 0;  // places, a multiple of kKeySpan
};

// One query head of a row that shares its first blocks with others.
struct SharedQuery {
  const float* q;    // (K,)
  float* sums;       // shared_floats()
  int64_t position;  // of its token
};

struct AttentionShape {
  int32_t num_heads, num_kv_heads, head_dim;
  float scale;
  int32_t window;  // 0: none
  float softcap;   // 0: none

  int64_t first_place(int64_t position) const {  // that a token at `position` sees
    return window && position >= window ? position - window + 1 : 0;
  }
  // Floats of one query head's sum over one split: K unnormalised values, their maximum score, their weight.
  int64_t part_floats() const { return head_dim + 2; }
  // And over the first places of a row: whole splits merged in order, then what there is of one more.
  int64_t shared_floats() const { return 2 * part_floats(); }
};

constexpr int kBlockSize = 16;   // S, token places in a KV block
constexpr int kKeySpan = 64;     // keys between two updates of the running maximum, aligned to position 0
constexpr int kKeySplit = 256;   // keys that are summed up by themselves, aligned to position 0, then merged in order

enum class Activation : int32_t { Silu = 0, GeluTanh = 1 };

struct Kernels {
  const char* name;
  // Rows [8 * block_begin, 8 * block_end) for tokens [token_begin, token_end).
  void (*matmul)(const Matrix& w, int64_t block_begin, int64_t block_end, const Activations& a,
                 int64_t token_begin, int64_t token_end, const Destination& to);
  // x (n,) to int8 in groups of 32; n is a multiple of 32. A group that holds a NaN or an infinity has scale and
  // sums of NaN, so that every product shows it.
  void (*quantize)(const float* x, int64_t n, int8_t* q, float* scale, float* sum32, float* sum16);
  void (*rms_norm)(const float* x, const float* weight, int64_t n, float eps, float* y);
  // x (n,) as f16, rounded to the nearest, ties to even.
  void (*halves)(const float* x, int64_t n, uint16_t* y);
  void (*gated)(const float* gate, const float* up, int64_t n, Activation activation, float* y);
  // Query tokens [token_begin, token_end) of a row, all query heads of KV head g.
  void (*attention)(const AttentionShape& shape, const AttentionRow& row, int64_t token_begin,
                    int64_t token_end, int32_t g);
  // Queries of KV head g, of any rows whose first `num_places` places, a multiple of kKeySpan, are in the same blocks
  // (those of `row`, of which only keys, values and blocks are read): each block is read once for many of them.
  void (*attention_shared)(const AttentionShape& shape, const AttentionRow& row, const SharedQuery* queries,
                           int64_t num_queries, int32_t g, int64_t num_places);
  // The same sums split by split, for splits [split_begin, split_end): part (t, h, split) at
  // parts + ((t * H + h) * num_splits + split) * part_floats(). A split that a token does not see gets weight 0.
  void (*attention_parts)(const AttentionShape& shape, const AttentionRow& row, int64_t token_begin,
                          int64_t token_end, int32_t g, int64_t split_begin, int64_t split_end, int64_t num_splits,
                          float* parts);
  // One query head's parts of consecutive splits, merged in order and normalised: what `attention` gives, to the bit.
  void (*merge_parts)(const AttentionShape& shape, const float* parts, int64_t num_parts, float* out);
  // From so many tokens on a product of quantised weights reads `Activations::panels`; 0: never.
  int64_t fewest_for_panels = 0;
};

const Kernels& reference_kernels();
// Each in a file compiled for its instructions: nothing there may be called before select.cpp knows that they run.
const Kernels& avx2_kernels();
const Kernels& vnni_kernels();
const Kernels& amx_kernels();
const Kernels& neon_kernels();
const Kernels& dotprod_kernels();

struct TableStatus {
  const char* name;
  const Kernels* table;  // null: it does not run here
  std::string lacks;     // what it would need; empty: it runs
};

// All tables for this kind of processor, fastest first.
std::vector<TableStatus> kernel_tables();

// "auto" is the fastest that runs here; else by name. Null: no such table on this machine.
const Kernels* select_kernels(const char* name);

}  // namespace headrace
