// SPDX-License-Identifier: Apache-2.0
// A forward pass recorded at load as a flat list of ops on numbered buffers, and its replay: one call a step,
// all threads walking the list together.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.h"
#include "pack.h"
#include "sampling.h"
#include "team.h"

namespace headrace {

// One wanted output, as laid out by the runner.
struct OutputSpec {
  int32_t token;    // index among the step's tokens
  int32_t target;   // id to score, or -1: draw
  int32_t num_top;  // -1: no log probabilities
  int32_t top_k;
  float temperature, top_p, min_p;
  float repetition_penalty, presence_penalty, frequency_penalty;
  uint64_t seed, position;
  int64_t bias_begin, bias_end;        // into Step::bias_ids and bias
  int64_t history_begin, history_end;  // into Step::history
  int32_t num_prompt;
  int32_t num_drawable;  // ids from this one on are left out of draw, list and normalisation; 0: none
};

constexpr int kMaxTop = 20;

// One step's rows. T tokens, R rows, O outputs.
struct Step {
  int64_t num_tokens, num_rows, num_outputs;
  const int32_t* tokens;        // (T,)
  const int64_t* row_begin;     // (R + 1,) into tokens
  const int64_t* num_computed;  // (R,)
  const int64_t* block_begin;   // (R + 1,) into blocks
  const int32_t* blocks;
  const OutputSpec* outputs;    // (O,)
  const int32_t* bias_ids;
  const float* bias;
  const int32_t* history;
  uint16_t* kv;                 // (L, 2, num_blocks, G * K * S) f16
  int64_t num_blocks;
  int32_t* result_token;        // (O,) -1: no finite logit to draw from
  float* result_logprob;        // (O,)
  int32_t* result_top;          // (O, kMaxTop)
  float* result_top_logprob;    // (O, kMaxTop)
};

// A linear op is cut into pieces of about equal bytes: several a thread, so that a thread that lost its core for a while
// can be helped, but none that is over before it is handed out. Even, since wide registers take two blocks at a time.
inline int64_t blocks_per_piece(int64_t total_bytes, int64_t block_bytes, int num_threads) {
  constexpr int64_t kPiecesPerThread = 8, kSmallestPiece = 8 * 1024;
  const int64_t target = std::max(total_bytes / (kPiecesPerThread * num_threads), kSmallestPiece);
  return std::max<int64_t>(2, target / block_bytes / 2 * 2);
}

enum class Prologue : int32_t { None = 0, RmsNorm = 1, Gated = 2 };

struct RopeTable {
  int32_t dim;
  bool interleaved;
  float attention_factor;
  std::vector<double> frequency;  // (dim / 2,) radians per position
};

class Program {
 public:
  Program(const Kernels& kernels, std::shared_ptr<Team> team, int64_t vocab_size);

  // --- recording: each function adds one op. Buffers hold (T, width) floats. ---------------------------
  int add_buffer(int64_t width);
  int add_rope(RopeTable rope);
  int add_vector(const float* weight, int64_t n);
  int add_matrix(std::shared_ptr<PackedMatrix> matrix);

  void embed(int gguf_id, const uint8_t* table, int64_t row_bytes, int64_t width, float scale, int out);
  // out = norm(in) * vector (+ add_to where >= 0)
  void norm(int in, int vector, float eps, int out, int add_to);
  // Input after the prologue: in, norm(in) * vector, or activation(in) * second. One product a matrix; a
  // buffer that a prologue reads must not be among outs.
  void linear(Prologue prologue, int in, int second, int vector, float eps, Activation activation,
              const std::vector<int>& matrices, const std::vector<int>& bias_vectors, const std::vector<int>& outs,
              const std::vector<int>& residuals);
  // Norms (where >= 0) and rotates q and k in place, writes k and v to the cache, attends.
  void attention(int q, int k, int v, int out, const AttentionShape& shape, int layer, int q_norm, int k_norm,
                 float eps, int rope);
  void add(int x, int y, int out);
  void softcap(int x, float cap, int out);
  // Buffers added and ops recorded after it hold and run on outputs, a few at a time.
  void select_outputs(int in, int out);
  void finish(int logits);

  // --- replay ------------------------------------------------------------------------------------------
  int64_t kv_halves(int64_t num_blocks) const { return num_blocks * kv_halves_per_block_; }
  void run(const Step& step);

 private:
  struct Piece {  // a share of a linear op: blocks [begin, end) of one of its matrices
    int32_t matrix;
    int64_t begin, end;
  };
  // Rows whose block tables begin alike, so far that their keys are read once for all of them.
  struct SharedPrefix {
    int32_t row;         // one of them
    int64_t num_places;  // that they share
    std::vector<int64_t> tokens;     // of all of them, in the step
    std::vector<int64_t> positions;  // of each of these
  };
  struct SharedTask {  // a share of the tokens of one prefix, for one KV head
    int32_t prefix, g;
    int64_t begin, end;
  };
  struct AttentionTask {
    int32_t row, g;
    int64_t token_begin, token_end;  // within the row
    int64_t split;                   // this split of the keys alone, or -1: all
  };
  enum class Code { Embed, Norm, Linear, Attention, Add, Softcap, Select };
  struct Op {
    explicit Op(Code op_code) : code(op_code) {}
    Code code;
    int counter = 0;  // number of its first counter; linear has one more than threads, attention three
    const Op* next_linear = nullptr;  // that comes after it
    int in = -1, second = -1, third = -1, out = -1, vector = -1, other_vector = -1;
    float eps = 0, factor = 1;
    Activation activation = Activation::Silu;
    Prologue prologue = Prologue::None;
    // embed
    int gguf_id = 0;
    const uint8_t* table = nullptr;
    int64_t row_bytes = 0;
    // linear
    std::vector<int> matrices, bias_vectors, outs, residuals;
    std::vector<Piece> pieces;
    bool any_quantized = false, any_float = false;
    // attention
    AttentionShape shape{};
    int layer = 0, rope = -1;
  };
  // Prologue results of some tokens, as the products read them.
  struct Scratch {
    std::vector<float> x, scale, sum32, sum16;
    std::vector<int8_t> q;
    std::vector<TokenPanel> panels;
    void reserve(int64_t tokens, int64_t columns, bool with_panels);
    Activations view() const { return {x.data(), q.data(), scale.data(), sum32.data(), sum16.data(), panels.data()}; }
  };

  void record(Op op) { (selected_ ? tail_ : body_).push_back(std::move(op)); }
  float* buffer(int number, int64_t token) const;
  void reserve(const Step& step);
  void plan_attention(const Step& step);
  void find_shared_prefixes(const Step& step);
  void plan_shared(int32_t num_kv_heads);
  void run_thread(const Step& step, int thread);
  void compute_angles(const Step& step, int thread);
  void run_op(const Op& op, const Step& step, int64_t num_tokens, int64_t first_output, int thread);
  void run_linear(const Op& op, int64_t num_tokens, int thread);
  void ask_for_weights(const Op& op, int thread);
  // Pieces of a linear op that a thread takes before it helps others.
  int64_t first_piece(const Op& op, int64_t thread) const {
    return static_cast<int64_t>(op.pieces.size()) * thread / team_->size();
  }
  void prologue(const Op& op, int64_t token, Scratch& scratch, bool with_panels);
  void run_attention(const Op& op, const Step& step);
  void attend(const Op& op, const Step& step, const AttentionTask& task);
  void attend_shared(const Op& op, const Step& step, const SharedTask& task);
  void merge_splits(const Op& op, const Step& step);
  bool uses_panels(int64_t num_tokens) const {
    return kernels_.fewest_for_panels && num_tokens >= kernels_.fewest_for_panels;
  }
  float* parts_of_row(const Op& op, const Step& step, int64_t row);
  void prepare_heads(const Op& op, const Step& step, int64_t row, int64_t token, int32_t head_begin,
                     int32_t head_end, int32_t kv_begin, int32_t kv_end);
  void sample(const Step& step, int64_t output, float* logits, std::vector<TopEntry>& scratch);
  int64_t next(const Op& op) { return counters_[op.counter].fetch_add(1, std::memory_order_relaxed); }

  const Kernels& kernels_;
  std::shared_ptr<Team> team_;
  int64_t vocab_size_;
  std::vector<int64_t> widths_;
  std::vector<std::vector<float>> buffers_;
  std::vector<char> in_tail_;  // per buffer: holds outputs, not tokens
  std::vector<RopeTable> ropes_;
  std::vector<std::vector<float>> angles_;  // per rope: (T, dim / 2, 2) cos, sin
  std::vector<std::vector<float>> vectors_;
  std::vector<std::shared_ptr<PackedMatrix>> matrices_;
  std::vector<Op> body_, tail_;
  bool selected_ = false;
  int logits_ = -1;
  int64_t max_columns_ = 0;
  int64_t kv_halves_per_block_ = 0;
  Scratch shared_;
  std::vector<Scratch> own_;
  std::vector<std::vector<TopEntry>> draw_scratch_;
  std::vector<AttentionTask> tasks_;
  bool heads_apart_ = false;  // prepare all heads first, meet, then attend
  int64_t num_splits_ = 0;    // of the longest row where keys are split among threads, else 0
  std::vector<float> parts_;  // (T, H, num_splits) sums of splits
  std::vector<SharedPrefix> prefixes_;
  std::vector<SharedTask> shared_tasks_;
  std::vector<int64_t> num_shared_places_;  // (R,)
  std::vector<float> shared_sums_;          // (T, H) sums over shared places
  std::unique_ptr<std::atomic<int64_t>[]> counters_;
  int num_counters_ = 0;
};

}  // namespace headrace
