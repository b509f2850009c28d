// SPDX-License-Identifier: Apache-2.0
// Products of quantised weights by AMX: a tile of 16 tokens times 16 rows and 32 columns in one instruction. Integers
// are exact and each lane's float sums run as at 256 bits, so the tables agree to the bit.
#pragma once
#include <new>

#include "products_avx512.h"

namespace headrace {
namespace {

constexpr int kTileRows = 2 * kRowBlock;
constexpr int kAtOnce = 2;  // groups of columns: what a tile stores cannot be read again at once
constexpr int64_t kCachedPanelBytes = 1 << 20;  // such machines have 2 MiB of second-level cache and more
constexpr int kFewestForPanels = 16;  // tokens: for fewer the tiles are too empty to pay for their loads and stores

// Sums of one group of columns into `out`. Tiles are named by number, which the intrinsics want as literals: 0 sums and 1
// activations of 16 tokens, 2 and 3 those of the last tokens, fewer than 16; 4 weights.
#define HEADRACE_DOT_TILES(SUMS, TOKENS, codes, q, out) \
  do {                                                  \
    _tile_zero(SUMS);                                   \
    _tile_loadd(4, codes, 4 * kTileRows);               \
    _tile_loadd(TOKENS, q, kGroup);                     \
    _tile_dpbssd(SUMS, TOKENS, 4);                      \
    _tile_stored(SUMS, out, 4 * kTileRows);             \
  } while (0)

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t num_rows[16] = {};

  // Groups of `group` columns; the last tokens are `rest`.
  TileConfig(int group, int64_t rest) {
    auto set = [&](int tile, int64_t rows, int bytes) {
      num_rows[tile] = static_cast<uint8_t>(rows);
      row_bytes[tile] = static_cast<uint16_t>(rows ? bytes : 0);
    };
    set(0, kPanelTokens, 4 * kTileRows);
    set(1, kPanelTokens, group);
    set(2, rest, 4 * kTileRows);
    set(3, rest, group);
    set(4, group / 4, 4 * kTileRows);
  }
};

// What 16 rows weigh over one group of columns, as the tiles read it.
template <int Group>
struct alignas(64) Panel {
  int8_t codes[Group / 4][kTileRows][4];
  float scale[kTileRows], min[kTileRows];
};

// How a kind's records are spread out: `unpack` writes the panels of one record of two blocks.
struct Q4Panels {
  static constexpr int group = 32;
  static constexpr bool has_min = true;
  static constexpr int64_t record = 160;
  static void unpack(const uint8_t* first, const uint8_t* second, Panel<group>* panel) {
    const __m512i low = _mm512_set1_epi8(15);
    for (int j = 0; j < 4; ++j) {
      const __m512i x = two_loads(first + 32 + 32 * j, second + 32 + 32 * j);
      _mm512_store_si512(panel->codes[j], _mm512_and_si512(x, low));
      _mm512_store_si512(panel->codes[j + 4], _mm512_and_si512(_mm512_srli_epi16(x, 4), low));
    }
    _mm512_store_ps(panel->scale, two_halves(first, second));
    _mm512_store_ps(panel->min, two_halves(first + 16, second + 16));
  }
};

template <int Group, bool HasMin>
struct Q8Panels {
  static constexpr int group = Group;
  static constexpr bool has_min = HasMin;
  static constexpr int parts = kGroup / Group, header = 16 * parts * (HasMin ? 2 : 1);
  static constexpr int64_t record = header + kRowBlock * kGroup;
  static void unpack(const uint8_t* first, const uint8_t* second, Panel<Group>* panel) {
    for (int part = 0; part < parts; ++part, ++panel) {
      for (int j = 0; j < Group / 4; ++j) {
        const int64_t at = header + 32 * (part * Group / 4 + j);
        _mm512_store_si512(panel->codes[j], two_loads(first + at, second + at));
      }
      _mm512_store_ps(panel->scale, two_halves(first + 16 * part, second + 16 * part));
      const int64_t min = 16 * (parts + part);
      if (HasMin) _mm512_store_ps(panel->min, two_halves(first + min, second + min));
    }
  }
};

template <class Form>
struct PlanePanels {
  static constexpr int group = Form::group;
  static constexpr bool has_min = Form::has_min;
  static constexpr int parts = kGroup / group;
  static constexpr int64_t record = record_bytes(Form::kind);
  static void unpack(const uint8_t* first, const uint8_t* second, Panel<group>* panel) {
    const TwoBlocks from{first, second};
    each<2>([&](auto half) {
      __m512i v[4];
      Form::template unpack<half>(from, v);
      each<4>([&](auto j) {
        constexpr int at = half * 4 + j;
        _mm512_store_si512(panel[at / (group / 4)].codes[at % (group / 4)], v[j]);
      });
    });
    each<parts>([&](auto part) {
      const __m512 scale = from.halves(16 * part);
      _mm512_store_ps(panel[part].scale, scale);
      if constexpr (has_min) _mm512_store_ps(panel[part].min, Form::minimum(from, part, scale));
    });
  }
};

// Memory that a thread keeps.
class Room {
 public:
  ~Room() { ::operator delete(bytes_, std::align_val_t{64}); }
  template <class T>
  T* of(int64_t count) {
    const size_t size = sizeof(T) * static_cast<size_t>(count);
    if (size > size_) {
      ::operator delete(bytes_, std::align_val_t{64});
      bytes_ = nullptr;
      size_ = 0;
      bytes_ = ::operator new(size, std::align_val_t{64});
      size_ = size;
    }
    return static_cast<T*>(bytes_);
  }

 private:
  void* bytes_ = nullptr;
  size_t size_ = 0;
};

// Where two blocks of rows begin.
struct Records {
  const uint8_t *first, *second;
};

// 16 rows for up to M tokens of one tile: sums of token i in out[i]. Spreads the records out on the way unless they are.
template <class Form, int M>
void panels_times_tokens(int64_t num_groups, const Records& records, Panel<Form::group>* panels, bool unpacked,
                         const TokenPanel* tokens, bool full, float (&out)[kPanelTokens][kTileRows]) {
  constexpr int parts = kGroup / Form::group;
  alignas(64) int32_t dots[kAtOnce * parts][kPanelTokens][kTileRows];
  if (!full) std::memset(dots, 0, sizeof dots);
  __m512 acc[M];
  each<M>([&](auto i) { acc[i] = _mm512_setzero_ps(); });
  auto dot = [&](int64_t p, int32_t (&to)[kPanelTokens][kTileRows]) __attribute__((always_inline)) {
    const int8_t* q = tokens[p / parts].q[0] + p % parts * Form::group;
    if (full)
      HEADRACE_DOT_TILES(0, 1, panels[p].codes, q, to);
    else
      HEADRACE_DOT_TILES(2, 3, panels[p].codes, q, to);
  };
  auto add = [&](int64_t p, const int32_t (&of)[kPanelTokens][kTileRows]) __attribute__((always_inline)) {
    const __m512 scale = _mm512_load_ps(panels[p].scale), min = _mm512_load_ps(panels[p].min);
    const TokenPanel& token = tokens[p / parts];
    const float* sum = parts == 1 ? token.sum32 : token.sum16[p % parts];
    each<M>([&](auto i) {
      const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(token.scale[i]));
      acc[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(of[i])), both, acc[i]);
      if (Form::has_min) acc[i] = _mm512_fmadd_ps(min, _mm512_set1_ps(sum[i]), acc[i]);
    });
  };
  const uint8_t *first = records.first, *second = records.second;
  for (int64_t g = 0; g < num_groups; g += kAtOnce) {
    const int64_t end = std::min<int64_t>(num_groups, g + kAtOnce);
    for (int64_t i = unpacked ? end : g; i < end; ++i, first += Form::record, second += Form::record) {
      prefetch_ahead<Form::record>(first);
      prefetch_ahead<Form::record>(second);
      Form::unpack(first, second, panels + i * parts);
    }
    for (int64_t p = g * parts; p < end * parts; ++p) dot(p, dots[p - g * parts]);
    for (int64_t p = g * parts; p < end * parts; ++p) add(p, dots[p - g * parts]);
  }
  each<M>([&](auto i) { _mm512_store_ps(out[i], acc[i]); });
}

// Sums of `count` tokens for blocks `block` and `block + 1`, as store_block would.
inline void store_tile(const Matrix& w, int64_t block, int64_t t, int64_t count, const Destination& to,
                       const float (&sums)[kPanelTokens][kTileRows]) {
  const int64_t n = block * kRowBlock;
  if (n + kTileRows > w.num_rows) {
    for (int64_t i = 0; i < count; ++i)
      for (int half = 0; half < 2; ++half) {
        const __m256 sum[1] = {_mm256_load_ps(sums[i] + half * kRowBlock)};
        store_block<1>(w, block + half, t + i, to, sum);
      }
    return;
  }
  const __m512 multiplier = _mm512_set1_ps(w.multiplier);
  const __m512 bias = to.bias ? _mm512_loadu_ps(to.bias + n) : _mm512_setzero_ps();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = (t + i) * to.stride + n;
    __m512 v = _mm512_mul_ps(_mm512_load_ps(sums[i]), multiplier);
    if (to.bias) v = _mm512_add_ps(v, bias);
    if (to.residual) v = _mm512_add_ps(v, _mm512_loadu_ps(to.residual + at));
    _mm512_storeu_ps(to.y + at, v);
  }
}

// An even number of blocks, two at a time; a span of tokens after another, so that their panels stay in the second-level
// cache while all blocks pass over them.
template <class Form>
void run_panels(const Matrix& w, int64_t block_begin, int64_t block_end, const Activations& a, int64_t token_begin,
                int64_t token_end, const Destination& to) {
  thread_local Room room;
  constexpr int parts = kGroup / Form::group;
  const int64_t groups = w.num_columns / kGroup;
  auto* panels = room.of<Panel<Form::group>>(groups * parts);
  const TileConfig config(Form::group, (token_end - token_begin) % kPanelTokens);
  _tile_loadconfig(&config);
  alignas(64) float sums[kPanelTokens][kTileRows];
  const int64_t tiles = std::max<int64_t>(1, kCachedPanelBytes / (groups * static_cast<int64_t>(sizeof(TokenPanel))));
  for (int64_t begin = token_begin; begin < token_end; begin += tiles * kPanelTokens) {
    const int64_t end = std::min(token_end, begin + tiles * kPanelTokens);
    for (int64_t block = block_begin; block < block_end; block += 2) {
      const uint8_t* first = w.data + block * w.block_bytes();
      const Records records{first, first + w.block_bytes()};
      for (int64_t t = begin; t < end; t += kPanelTokens) {
        const int64_t count = std::min<int64_t>(kPanelTokens, end - t);
        const auto run = count <= 8 ? panels_times_tokens<Form, 8> : panels_times_tokens<Form, 16>;
        run(groups, records, panels, t > begin, a.panels + t / kPanelTokens * groups, count == kPanelTokens, sums);
        store_tile(w, block, t, count, to, sums);
      }
    }
  }
  _tile_release();
}

// As matmul_512, quantised kinds by tiles where there are tokens enough to fill them.
void matmul_amx(const Matrix& w, int64_t block_begin, int64_t block_end, const Activations& a, int64_t token_begin,
                int64_t token_end, const Destination& to) {
  if (!is_quantized(w.kind) || token_end - token_begin < kFewestForPanels)
    return matmul_512(w, block_begin, block_end, a, token_begin, token_end, to);
  auto run = run_panels<Q4Panels>;
  switch (w.kind) {
    case Kind::Q8: run = run_panels<Q8Panels<kGroup, false>>; break;
    case Kind::Q8M: run = run_panels<Q8Panels<kGroup, true>>; break;
    case Kind::Q8G16: run = run_panels<Q8Panels<kHalfGroup, false>>; break;
    case Kind::Q8G16M: run = run_panels<Q8Panels<kHalfGroup, true>>; break;
    case Kind::Q5: run = run_panels<PlanePanels<Q5Planes<false>>>; break;
    case Kind::Q5M: run = run_panels<PlanePanels<Q5Planes<true>>>; break;
    case Kind::Q6G16: run = run_panels<PlanePanels<Q6Planes>>; break;
    case Kind::IQ4: run = run_panels<PlanePanels<IQ4Places>>; break;
    case Kind::MXFP4: run = run_panels<PlanePanels<MXFP4Places>>; break;
    case Kind::Q3G16: run = run_panels<PlanePanels<Q3Planes>>; break;
    case Kind::Q2G16M: run = run_panels<PlanePanels<Q2Planes>>; break;
    default: break;
  }
  const int64_t even_end = block_begin + (block_end - block_begin) / 2 * 2;
  run(w, block_begin, even_end, a, token_begin, token_end, to);
  if (even_end < block_end) matmul_512(w, even_end, block_end, a, token_begin, token_end, to);
}

}  // namespace
}  // namespace headrace
