// SPDX-License-Identifier: Apache-2.0
// Recording: what a program holds, checked as it is added.
#include "program.h"

#include <algorithm>
#include <stdexcept>

#include "unpack.h"

namespace headrace {

Program::Program(const Kernels& kernels, std::shared_ptr<Team> team, int64_t vocab_size)
    : kernels_(kernels), team_(std::move(team)), vocab_size_(vocab_size) {
  own_.resize(static_cast<size_t>(team_->size()));
  draw_scratch_.resize(static_cast<size_t>(team_->size()));
}

int Program::add_buffer(int64_t width) {
  widths_.push_back(width);
  buffers_.emplace_back();
  in_tail_.push_back(selected_);
  return static_cast<int>(widths_.size()) - 1;
}

int Program::add_rope(RopeTable rope) {
  ropes_.push_back(std::move(rope));
  angles_.emplace_back();
  return static_cast<int>(ropes_.size()) - 1;
}

int Program::add_vector(const float* weight, int64_t n) {
  vectors_.emplace_back(weight, weight + n);
  return static_cast<int>(vectors_.size()) - 1;
}

int Program::add_matrix(std::shared_ptr<PackedMatrix> matrix) {
  max_columns_ = std::max(max_columns_, matrix->view().num_columns);
  matrices_.push_back(std::move(matrix));
  return static_cast<int>(matrices_.size()) - 1;
}

void Program::embed(int gguf_id, const uint8_t* table, int64_t row_bytes, int64_t width, float scale, int out) {
  Op op(Code::Embed);
  op.gguf_id = gguf_id;
  op.table = table;
  op.row_bytes = row_bytes;
  op.factor = scale;
  op.out = out;
  if (widths_.at(out) != width) throw std::invalid_argument("embed: the buffer has another width");
  if (row_bytes != stored_bytes(gguf_id, width))
    throw std::invalid_argument("embed: rows of the table have another size");
  op.counter = num_counters_++;
  record(std::move(op));
}

void Program::norm(int in, int vector, float eps, int out, int add_to) {
  Op op(Code::Norm);
  op.in = in;
  op.vector = vector;
  op.eps = eps;
  op.out = out;
  op.second = add_to;
  op.counter = num_counters_++;
  record(std::move(op));
}

void Program::linear(Prologue prologue, int in, int second, int vector, float eps, Activation activation,
                     const std::vector<int>& matrices, const std::vector<int>& bias_vectors,
                     const std::vector<int>& outs, const std::vector<int>& residuals) {
  Op op(Code::Linear);
  op.prologue = prologue;
  op.in = in;
  op.second = second;
  op.vector = vector;
  op.eps = eps;
  op.activation = activation;
  op.matrices = matrices;
  op.bias_vectors = bias_vectors;
  op.outs = outs;
  op.residuals = residuals;
  int64_t total = 0;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const Matrix& w = matrices_.at(matrices[i])->view();
    if (w.num_columns != widths_.at(in) || w.num_rows != widths_.at(outs.at(i)))
      throw std::invalid_argument("linear: shapes of matrix and buffers differ");
    (is_quantized(w.kind) ? op.any_quantized : op.any_float) = true;
    total += w.block_bytes() * w.num_blocks();
  }
  for (size_t i = 0; i < matrices.size(); ++i) {
    const Matrix& w = matrices_.at(matrices[i])->view();
    const int64_t step = blocks_per_piece(total, w.block_bytes(), team_->size());
    for (int64_t b = 0; b < w.num_blocks(); b += step)
      op.pieces.push_back(Piece{static_cast<int32_t>(i), b, std::min(b + step, w.num_blocks())});
  }
  op.counter = num_counters_;
  num_counters_ += 1 + team_->size();
  record(std::move(op));
}

void Program::attention(int q, int k, int v, int out, const AttentionShape& shape, int layer, int q_norm, int k_norm,
                        float eps, int rope) {
  Op op(Code::Attention);
  op.in = q;
  op.second = k;
  op.third = v;
  op.out = out;
  op.shape = shape;
  op.layer = layer;
  op.vector = q_norm;
  op.other_vector = k_norm;
  op.eps = eps;
  op.rope = rope;
  op.counter = num_counters_;
  num_counters_ += 3;
  const int64_t plane = int64_t{shape.num_kv_heads} * shape.head_dim * kBlockSize;
  kv_halves_per_block_ = std::max(kv_halves_per_block_, 2 * (layer + 1) * plane);
  record(std::move(op));
}

void Program::add(int x, int y, int out) {
  Op op(Code::Add);
  op.in = x;
  op.second = y;
  op.out = out;
  op.counter = num_counters_++;
  record(std::move(op));
}

void Program::softcap(int x, float cap, int out) {
  Op op(Code::Softcap);
  op.in = x;
  op.out = out;
  op.factor = cap;
  op.counter = num_counters_++;
  record(std::move(op));
}

void Program::select_outputs(int in, int out) {
  if (selected_) throw std::invalid_argument("outputs are selected once");
  selected_ = true;
  in_tail_.at(out) = 1;
  Op op(Code::Select);
  op.in = in;
  op.out = out;
  op.counter = num_counters_++;
  record(std::move(op));
}

void Program::finish(int logits) {
  if (!selected_) throw std::invalid_argument("a forward pass must select its outputs");
  if (widths_.at(logits) != vocab_size_) throw std::invalid_argument("logits must be as wide as the vocabulary");
  logits_ = logits;
  counters_ = std::make_unique<std::atomic<int64_t>[]>(static_cast<size_t>(num_counters_ + 1));
  const Op* next_linear = nullptr;
  for (std::vector<Op>* ops : {&tail_, &body_})
    for (auto op = ops->rbegin(); op != ops->rend(); ++op) {
      op->next_linear = next_linear;
      if (op->code == Code::Linear) next_linear = &*op;
    }
}

}  // namespace headrace
