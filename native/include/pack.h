// SPDX-License-Identifier: Apache-2.0
// From a file's tensor to the layout that the kernels read.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "kernels.h"
#include "team.h"

namespace headrace {

// Counts what the packed bytes of a tensor have meant so far, for those that keep them from one start to the next: one
// more whenever any tensor's bytes, kind or multiplier come out differently. A test holds it to the bytes.
constexpr int kPackedLayout = 1;

// A packed matrix that owns its bytes, or views them where somebody else keeps them.
class PackedMatrix {
 public:
  // Packs rows x columns of a ggml type on all threads of the team. Throws std::invalid_argument for a type that is
  // not known, columns that do not fill whole qblocks, or a number of bytes that rows of that size do not have.
  PackedMatrix(int gguf_id, const uint8_t* data, int64_t num_stored, int64_t rows, int64_t columns, Team& team);
  // What another packed of a tensor of this type and size, read again: `owner` keeps the bytes, 64-byte aligned, as
  // long as this lives. Throws std::invalid_argument for bytes that cannot be those of such a tensor.
  PackedMatrix(int gguf_id, const uint8_t* packed, int64_t num_packed, int64_t rows, int64_t columns, float multiplier,
               std::shared_ptr<const void> owner);
  const Matrix& view() const { return view_; }
  int64_t num_bytes() const { return view_.block_bytes() * view_.num_blocks(); }

 private:
  struct Free {
    void operator()(uint8_t* p) const;
  };
  std::unique_ptr<uint8_t, Free> bytes_;
  std::shared_ptr<const void> owner_;  // of bytes that are not ours
  Matrix view_;
};

}  // namespace headrace
