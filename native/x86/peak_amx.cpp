// SPDX-License-Identifier: Apache-2.0
// Products of bytes by tiles: 16 x 64 times 64 x 16 in one instruction, in four tiles by turns.
#include <immintrin.h>

#include <cstring>

#include "../include/peak.h"

namespace headrace {
namespace {

constexpr int kSums = 4;

struct alignas(64) TileConfig {  // LDTILECFG's operand, palette 1
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

void run(int64_t rounds) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = 64;
    config.rows[tile] = 16;
  }
  alignas(64) int8_t bytes[16 * 64];
  std::memset(bytes, 2, sizeof bytes);
  __asm__ volatile("" : : "r"(&config), "r"(bytes) : "memory");  // the intrinsics do not say what they read
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, bytes, 64);
  _tile_loadd(5, bytes, 64);
  _tile_loadd(6, bytes, 64);
  _tile_loadd(7, bytes, 64);
  for (int64_t i = 0; i < rounds; ++i) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_release();
}

}  // namespace

const ByteChain& amx_chain() {
  static const ByteChain chain{"tdpbssd", kSums * 16 * 16 * 64, run};
  return chain;
}

}  // namespace headrace
