// SPDX-License-Identifier: Apache-2.0
// One step of a recorded program: what is made ready for it, and the walk of all threads along the ops.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "program.h"
#include "unpack.h"

namespace headrace {

namespace {
constexpr int64_t kOutputsAtOnce = 32;     // logits of a large vocabulary are held for so many outputs
constexpr int64_t kOwnPrologue = 4;        // up to so many tokens, each thread prepares the input for itself
constexpr int64_t kTokensPerChunk = 4;     // that a thread takes at once where tokens are handed out
constexpr int64_t kFewTokens = 8;          // for more, memory is not what a product waits for
constexpr int64_t kAskedAhead = 8 * 1024;  // bytes of the next product's weights
constexpr int64_t kCacheLine = 64;
}  // namespace

void Program::Scratch::reserve(int64_t tokens, int64_t columns, bool with_panels) {
  x.resize(std::max<size_t>(x.size(), tokens * columns));
  q.resize(std::max<size_t>(q.size(), tokens * columns));
  scale.resize(std::max<size_t>(scale.size(), tokens * columns / kGroup));
  sum32.resize(scale.size());
  sum16.resize(std::max<size_t>(sum16.size(), tokens * columns / kHalfGroup));
  const int64_t num_panels = with_panels ? (tokens + kPanelTokens - 1) / kPanelTokens * (columns / kGroup) : 0;
  panels.resize(std::max<size_t>(panels.size(), num_panels));
}

float* Program::buffer(int number, int64_t token) const {
  return const_cast<float*>(buffers_[number].data()) + token * widths_[number];
}

void Program::reserve(const Step& step) {
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const int64_t rows = in_tail_[i] ? std::min(kOutputsAtOnce, step.num_outputs) : step.num_tokens;
    const size_t size = static_cast<size_t>(rows * widths_[i]);
    if (buffers_[i].size() < size) buffers_[i].resize(size);
  }
  const int64_t most = std::max(step.num_tokens, std::min(kOutputsAtOnce, step.num_outputs));
  shared_.reserve(most, max_columns_, uses_panels(most));
  for (Scratch& scratch : own_) scratch.reserve(kOwnPrologue, max_columns_, false);
  for (size_t i = 0; i < ropes_.size(); ++i) {
    const size_t size = static_cast<size_t>(step.num_tokens * ropes_[i].dim);
    if (angles_[i].size() < size) angles_[i].resize(size);
  }
}

void Program::run(const Step& step) {
  if (logits_ < 0) throw std::invalid_argument("the program is not finished");
  team_->run([&](int thread) {
    // Inside, where nobody else can be.
    if (thread == 0) {
      reserve(step);
      plan_attention(step);
      for (int i = 0; i <= num_counters_; ++i) counters_[i].store(0, std::memory_order_relaxed);
    }
    team_->barrier();
    run_thread(step, thread);
  });
}

void Program::compute_angles(const Step& step, int thread) {
  for (size_t i = 0; i < ropes_.size(); ++i) {
    const RopeTable& rope = ropes_[i];
    for (int64_t row = 0; row < step.num_rows; ++row)
      for (int64_t t = step.row_begin[row]; t < step.row_begin[row + 1]; ++t) {
        if (t % team_->size() != thread) continue;
        const double position = static_cast<double>(step.num_computed[row] + t - step.row_begin[row]);
        float* angle = angles_[i].data() + t * rope.dim;
        for (int32_t d = 0; d < rope.dim / 2; ++d) {
          const double theta = position * rope.frequency[d];
          angle[2 * d] = static_cast<float>(std::cos(theta)) * rope.attention_factor;
          angle[2 * d + 1] = static_cast<float>(std::sin(theta)) * rope.attention_factor;
        }
      }
  }
}

void Program::run_thread(const Step& step, int thread) {
  compute_angles(step, thread);
  for (const Op& op : body_) {
    run_op(op, step, step.num_tokens, 0, thread);
    if (op.next_linear && step.num_tokens <= kFewTokens) ask_for_weights(*op.next_linear, thread);
    team_->barrier();
  }
  for (int64_t first = 0; first < step.num_outputs; first += kOutputsAtOnce) {
    const int64_t count = std::min(kOutputsAtOnce, step.num_outputs - first);
    if (first > 0) {
      team_->barrier();
      if (thread == 0)
        for (int i = tail_.front().counter; i <= num_counters_; ++i) counters_[i].store(0, std::memory_order_relaxed);
      team_->barrier();
    }
    for (const Op& op : tail_) {
      run_op(op, step, count, first, thread);
      team_->barrier();
    }
    for (int64_t i; (i = counters_[num_counters_].fetch_add(1, std::memory_order_relaxed)) < count;)
      sample(step, first + i, buffer(logits_, i), draw_scratch_[thread]);
  }
}

void Program::run_op(const Op& op, const Step& step, int64_t num_tokens, int64_t first_output, int thread) {
  if (op.code == Code::Linear) return run_linear(op, num_tokens, thread);
  if (op.code == Code::Attention) return run_attention(op, step);
  const int64_t width = widths_[op.out];
  for (int64_t begin; (begin = next(op) * kTokensPerChunk) < num_tokens;)
    for (int64_t t = begin; t < std::min(num_tokens, begin + kTokensPerChunk); ++t) {
      float* out = buffer(op.out, t);
      switch (op.code) {
        case Code::Embed:
          dequantize(op.gguf_id, op.table + step.tokens[t] * op.row_bytes, width, out);
          if (op.factor != 1.0f)
            for (int64_t i = 0; i < width; ++i) out[i] *= op.factor;
          break;
        case Code::Norm:
          if (op.second < 0) {
            kernels_.rms_norm(buffer(op.in, t), vectors_[op.vector].data(), width, op.eps, out);
          } else {
            // The scratch row of this token is free here: no linear op is running.
            float* normed = shared_.x.data() + t * width;
            kernels_.rms_norm(buffer(op.in, t), vectors_[op.vector].data(), width, op.eps, normed);
            const float* base = buffer(op.second, t);
            for (int64_t i = 0; i < width; ++i) out[i] = base[i] + normed[i];
          }
          break;
        case Code::Add: {
          const float *x = buffer(op.in, t), *y = buffer(op.second, t);
          for (int64_t i = 0; i < width; ++i) out[i] = x[i] + y[i];
          break;
        }
        case Code::Softcap: {
          const float* x = buffer(op.in, t);
          for (int64_t i = 0; i < width; ++i) out[i] = op.factor * std::tanh(x[i] / op.factor);
          break;
        }
        case Code::Select:
          std::memcpy(out, buffer(op.in, step.outputs[first_output + t].token), sizeof(float) * width);
          break;
        default: break;
      }
    }
}

// The input of one token, ready for the products.
void Program::prologue(const Op& op, int64_t token, Scratch& scratch, bool with_panels) {
  const int64_t columns = widths_[op.in];
  const float* x = buffer(op.in, token);
  float* ready = scratch.x.data() + token * columns;
  if (op.prologue == Prologue::RmsNorm) {
    kernels_.rms_norm(x, vectors_[op.vector].data(), columns, op.eps, ready);
  } else if (op.prologue == Prologue::Gated) {
    kernels_.gated(x, buffer(op.second, token), columns, op.activation, ready);
  } else if (op.any_float) {
    std::memcpy(ready, x, sizeof(float) * static_cast<size_t>(columns));
  } else {
    ready = const_cast<float*>(x);
  }
  if (!op.any_quantized) return;
  const int64_t groups = columns / kGroup;
  int8_t* q = scratch.q.data() + token * columns;
  float* scale = scratch.scale.data() + token * groups;
  float* sum32 = scratch.sum32.data() + token * groups;
  float* sum16 = scratch.sum16.data() + token * groups * 2;
  kernels_.quantize(ready, columns, q, scale, sum32, sum16);
  if (with_panels) put_in_panels({ready, q, scale, sum32, sum16, nullptr}, columns, token, scratch.panels.data());
}

void Program::run_linear(const Op& op, int64_t num_tokens, int thread) {
  Scratch& scratch = num_tokens <= kOwnPrologue ? own_[thread] : shared_;
  if (num_tokens <= kOwnPrologue) {
    for (int64_t t = 0; t < num_tokens; ++t) prologue(op, t, scratch, false);
  } else {
    const bool with_panels = uses_panels(num_tokens);
    // Tokens of one panel lie in the same cache lines, so they are better made by one thread.
    const int64_t whole = std::min<int64_t>(kPanelTokens, (num_tokens + team_->size() - 1) / team_->size());
    const int64_t chunk = with_panels ? whole : kTokensPerChunk;
    for (int64_t begin; (begin = next(op) * chunk) < num_tokens;)
      for (int64_t t = begin; t < std::min(num_tokens, begin + chunk); ++t) prologue(op, t, scratch, with_panels);
    team_->barrier();
  }
  const Activations input = scratch.view();
  // A thread's own share lies in one run of memory, which is read best; then it helps those that are slower.
  for (int k = 0; k < team_->size(); ++k) {
    const int owner = (thread + k) % team_->size();
    const int64_t first = first_piece(op, owner), end = first_piece(op, owner + 1);
    std::atomic<int64_t>& counter = counters_[op.counter + 1 + owner];
    for (int64_t i; (i = first + counter.fetch_add(1, std::memory_order_relaxed)) < end;) {
      const Piece& piece = op.pieces[i];
      const int out = op.outs[piece.matrix], bias = op.bias_vectors[piece.matrix];
      const int residual = op.residuals[piece.matrix];
      const Destination to{buffer(out, 0), widths_[out], bias < 0 ? nullptr : vectors_[bias].data(),
                           residual < 0 ? nullptr : buffer(residual, 0)};
      kernels_.matmul(matrices_[op.matrices[piece.matrix]]->view(), piece.begin, piece.end, input, 0, num_tokens, to);
    }
  }
}

// The beginning of the thread's share of the op's weights, so that memory is at work while threads meet.
void Program::ask_for_weights(const Op& op, int thread) {
  const int64_t first = first_piece(op, thread);
  if (first == first_piece(op, thread + 1)) return;
  const Piece& piece = op.pieces[first];
  const Matrix& w = matrices_[op.matrices[piece.matrix]]->view();
  const uint8_t* begin = w.data + piece.begin * w.block_bytes();
  const int64_t size = std::min(kAskedAhead, (piece.end - piece.begin) * w.block_bytes());
  for (int64_t at = 0; at < size; at += kCacheLine) __builtin_prefetch(begin + at);
}

void Program::sample(const Step& step, int64_t output, float* logits, std::vector<TopEntry>& scratch) {
  const OutputSpec& spec = step.outputs[output];
  const int32_t vocab = spec.num_drawable > 0 ? spec.num_drawable : static_cast<int32_t>(vocab_size_);
  TopEntry top[kMaxTop];
  const int32_t num_top = std::max(0, std::min(spec.num_top, kMaxTop));
  int32_t token = spec.target;
  std::vector<float> untouched;
  if (token < 0) {
    const Draw draw{spec.temperature,
                    spec.top_k,
                    spec.top_p,
                    spec.min_p,
                    spec.repetition_penalty,
                    spec.presence_penalty,
                    spec.frequency_penalty,
                    spec.seed,
                    spec.position,
                    step.bias_ids + spec.bias_begin,
                    step.bias + spec.bias_begin,
                    static_cast<int32_t>(spec.bias_end - spec.bias_begin),
                    step.history + spec.history_begin,
                    static_cast<int32_t>(spec.history_end - spec.history_begin),
                    spec.num_prompt};
    if (spec.num_top >= 0) untouched.assign(logits, logits + vocab);
    token = draw_token(logits, vocab, draw, scratch);
  }
  step.result_token[output] = token;
  step.result_logprob[output] = 0;
  if (spec.num_top < 0 || token < 0) return;
  step.result_logprob[output] =
      log_probabilities(untouched.empty() ? logits : untouched.data(), vocab, token, num_top, top);
  for (int32_t i = 0; i < num_top; ++i) {
    step.result_top[output * kMaxTop + i] = top[i].token;
    step.result_top_logprob[output * kMaxTop + i] = top[i].logprob;
  }
}

}  // namespace headrace
