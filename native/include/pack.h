// SPDX-License-Identifier: Apache-2.0
// From a file's tensor to the layout that the kernels read.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "kernels.h"
#include "team.h"

namespace headrace {

// A packed matrix that owns its bytes.
class PackedMatrix {
 public:
  // Packs rows x columns of a ggml type on all threads of the team. Throws std::invalid_argument for a type that is
  // not known, columns that do not fill whole qblocks, or a number of bytes that rows of that size do not have.
  PackedMatrix(int gguf_id, const uint8_t* data, int64_t num_stored, int64_t rows, int64_t columns, Team& team);
  const Matrix& view() const { return view_; }
  int64_t num_bytes() const { return view_.block_bytes() * view_.num_blocks(); }

 private:
  struct Free {
    void operator()(uint8_t* p) const;
  };
  std::unique_ptr<uint8_t, Free> bytes_;
  Matrix view_;
};

}  // namespace headrace
