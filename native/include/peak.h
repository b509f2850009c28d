// SPDX-License-Identifier: Apache-2.0
// The roof over products of bytes: chains of multiply-adds that live in registers, one for each way that a kernel
// table multiplies. Only bench/ asks.
#pragma once
#include <cstdint>

namespace headrace {

struct ByteChain {
  const char* name;
  int64_t multiply_adds;        // of one round
  void (*run)(int64_t rounds);  // on the calling thread
};

// Null: the table multiplies no bytes with instructions of its own (the reference), or is not known here. Only for
// the name of a table that runs on this CPU.
const ByteChain* byte_chain(const char* table);

// Each in a file compiled for its instructions, as the tables are.
const ByteChain& avx2_chain();
const ByteChain& vnni_chain();
const ByteChain& amx_chain();
const ByteChain& neon_chain();
const ByteChain& neon_dot_chain();
const ByteChain& neon_i8mm_chain();

}  // namespace headrace
