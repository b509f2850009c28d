// SPDX-License-Identifier: Apache-2.0
// Drawing a token from one row of logits. Plain C++, no threads, no state: what it draws depends on its
// arguments alone.
#pragma once
#include <cstdint>
#include <vector>

namespace headrace {

struct Draw {
  float temperature;         // 0: the most likely token (lowest id at ties)
  int32_t top_k;             // 0: off
  float top_p, min_p;
  float repetition_penalty;  // over all of history
  float presence_penalty, frequency_penalty;  // over history[num_prompt:]
  uint64_t seed;
  uint64_t position;
  const int32_t* bias_ids;   // (num_bias,)
  const float* bias;         // may be -inf: banned
  int32_t num_bias;
  const int32_t* history;    // (num_history,)
  int32_t num_history, num_prompt;
};

struct TopEntry { int32_t token; float logprob; };

// A uniform number in [0, 1) from (seed, position): counter based (splitmix64 finaliser over a mix of both).
double uniform(uint64_t seed, uint64_t position);

// Draw from logits (num_vocab,), which are changed in place. Order: bias, penalties, temperature, top-k,
// top-p, min-p. Scratch grows as needed and is reused. -1: every logit is -inf or NaN.
int32_t draw_token(float* logits, int32_t num_vocab, const Draw& draw, std::vector<TopEntry>& scratch);

// log-softmax value of `token` and the num_top most likely tokens (ties: lower id first) of untouched logits.
// Where fewer than num_top logits are numbers, the remaining entries have token -1.
float log_probabilities(const float* logits, int32_t num_vocab, int32_t token, int32_t num_top, TopEntry* top);
}  // namespace headrace
