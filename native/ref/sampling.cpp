// SPDX-License-Identifier: Apache-2.0
// Drawing one token from one row of logits, without sorting the vocabulary: every filter finds a threshold
// and sets the weights below it to zero, and the draw walks the weights in order of id. The numpy twin is
// kernels/ref/sampling.py; both keep these rules:
//  - -inf and NaN logits are never drawn; with nothing else left the answer is -1 and the caller reports it.
//  - A token whose scaled logit is more than 64 below the best (weight < 2e-28) is never drawn: a uniform
//    number has 53 bits and could not hit it.
#include "../include/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace headrace {
namespace {

constexpr float NEG_INF = -std::numeric_limits<float>::infinity();
constexpr float LOWEST_EXPONENT = -64;
constexpr int CHUNK = 64;

// ---- penalties ----

// Where `token` is, or would go, in an open-addressed table of a power-of-two size. Empty: token -1.
TopEntry& find_slot(TopEntry* table, uint32_t mask, int32_t token) {
  uint32_t slot = static_cast<uint32_t>(token) * 2654435769u & mask;
  while (table[slot].token != -1 && table[slot].token != token) slot = (slot + 1) & mask;
  return table[slot];
}

float penalised(float logit, float count, const Draw& draw) {
  if (draw.repetition_penalty != 1.0f)
    logit = logit > 0 ? logit / draw.repetition_penalty : logit * draw.repetition_penalty;
  if (count > 0) {
    // In double the product is exact, so that no compiler's fused multiply-add changes the result.
    const double penalty = draw.presence_penalty + static_cast<double>(draw.frequency_penalty) * count;
    logit = static_cast<float>(logit - penalty);
  }
  return logit;
}

// Each distinct id of history once; `table` counts how often it is in the output part.
void apply_penalties(float* logits, int32_t num_vocab, const Draw& draw, std::vector<TopEntry>& table) {
  if (draw.num_history == 0) return;
  if (draw.repetition_penalty == 1.0f && draw.presence_penalty == 0.0f && draw.frequency_penalty == 0.0f) return;
  size_t size = 16;
  while (size < 2 * static_cast<size_t>(draw.num_history)) size *= 2;
  table.assign(size, {-1, 0.0f});
  for (int32_t i = 0; i < draw.num_history; ++i) {
    const int32_t token = draw.history[i];
    if (token < 0 || token >= num_vocab) continue;
    TopEntry& entry = find_slot(table.data(), static_cast<uint32_t>(size - 1), token);
    entry.token = token;
    if (i >= draw.num_prompt) entry.logprob += 1.0f;
  }
  for (const TopEntry& entry : table)
    if (entry.token != -1) logits[entry.token] = penalised(logits[entry.token], entry.logprob, draw);
}

void apply_bias(float* logits, int32_t num_vocab, const Draw& draw) {
  for (int32_t i = 0; i < draw.num_bias; ++i)
    if (draw.bias_ids[i] >= 0 && draw.bias_ids[i] < num_vocab) logits[draw.bias_ids[i]] += draw.bias[i];
}

// ---- the largest logits ----

bool any_above(const float* x, int32_t n, float threshold) {
  int32_t any = 0;
  for (int32_t i = 0; i < n; ++i) any |= x[i] > threshold;
  return any != 0;
}

// Lowest id of the largest logit; -1 if all are -inf or NaN.
int32_t most_likely(const float* logits, int32_t num_vocab) {
  int32_t best = -1;
  float best_logit = NEG_INF;
  for (int32_t start = 0; start < num_vocab; start += CHUNK) {
    const int32_t end = std::min(start + CHUNK, num_vocab);
    if (!any_above(logits + start, end - start, best_logit)) continue;
    for (int32_t i = start; i < end; ++i)
      if (logits[i] > best_logit) best_logit = logits[best = i];
  }
  return best;
}

bool more_likely(const TopEntry& a, const TopEntry& b) {
  return a.logprob > b.logprob || (a.logprob == b.logprob && a.token < b.token);
}

bool lower_id(const TopEntry& a, const TopEntry& b) { return a.token < b.token; }

// Leave in `kept` the k most likely (lower id first at ties), in order of id. k < num_vocab.
// A newcomer that equals the k-th has a higher id than it, so only larger ones enter.
void keep_top_k(const float* logits, int32_t num_vocab, int32_t k, std::vector<TopEntry>& kept) {
  const size_t room = 2 * static_cast<size_t>(k) + CHUNK;
  float threshold = NEG_INF;
  const auto shrink = [&] {
    std::nth_element(kept.begin(), kept.begin() + (k - 1), kept.end(), more_likely);
    threshold = kept[static_cast<size_t>(k) - 1].logprob;
    kept.resize(static_cast<size_t>(k));
  };
  kept.clear();
  for (int32_t start = 0; start < num_vocab; start += CHUNK) {
    const int32_t end = std::min(start + CHUNK, num_vocab);
    if (!any_above(logits + start, end - start, threshold)) continue;
    for (int32_t i = start; i < end; ++i)
      if (logits[i] > threshold) kept.push_back({i, logits[i]});
    if (kept.size() + CHUNK > room) shrink();
  }
  if (kept.size() > static_cast<size_t>(k)) shrink();
  std::sort(kept.begin(), kept.end(), lower_id);
}

// ---- weights ----

uint32_t bits_of_float(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  return bits;
}

float float_of_bits(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

// exp(x) for LOWEST_EXPONENT <= x <= 0, else 0 (also for NaN). Relative error below 3e-7; exp_weight(0) is 1.
// x = n ln 2 + r with |r| <= 0.35, where seven terms of the series suffice. The choice is made with a mask of
// all ones or zeros, not with a branch, so that loops over it vectorise.
inline float exp_weight(float x) {
  const uint32_t live = 0u - static_cast<uint32_t>(x >= LOWEST_EXPONENT);
  const float y = float_of_bits(bits_of_float(x) & live);
  const int32_t n = static_cast<int32_t>(y * 1.44269504f - 0.5f);  // to nearest: y <= 0 and casts truncate
  const float r = (y - static_cast<float>(n) * 0.693359375f) + static_cast<float>(n) * 2.12194440e-4f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const float power = float_of_bits(static_cast<uint32_t>(n + 127) << 23);
  return float_of_bits(bits_of_float(p * power) & live);
}

// The sum of up to CHUNK weights: float32 sums would lose the small ones, so in double, four lanes.
double sum_chunk(const float* weights, int32_t n) {
  double lane[4] = {0, 0, 0, 0};
  int32_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (int j = 0; j < 4; ++j) lane[j] += weights[i + j];
  for (; i < n; ++i) lane[0] += weights[i];
  return (lane[0] + lane[1]) + (lane[2] + lane[3]);
}

double sum_weights(const float* weights, int32_t n) {
  double sum = 0;
  for (int32_t start = 0; start < n; start += CHUNK) sum += sum_chunk(weights + start, std::min(CHUNK, n - start));
  return sum;
}

// Logits (n,) to weights exp((logit - largest) / temperature). Dividing after subtracting keeps tiny
// temperatures from overflowing to anything but weight 0.
void to_weights(float* logits, int32_t n, float largest, float temperature) {
  for (int32_t i = 0; i < n; ++i) logits[i] = exp_weight((logits[i] - largest) / temperature);
}

// Zero all but the smallest set of largest weights whose sum reaches top_p of the total (at least one; lower
// id first at ties). The bits of positive floats order as the floats do, and a weight is at most 1, so it has
// 30 of them: three rounds of ten settle the smallest weight that is kept.
void keep_nucleus(float* weights, int32_t n, double top_p) {
  double missing = top_p * sum_weights(weights, n);  // what weights of the current prefix must supply
  uint32_t prefix = 0;
  for (int shift = 20; shift >= 0; shift -= 10) {
    double mass[1024] = {};
    for (int32_t i = 0; i < n; ++i) {
      const uint32_t bits = bits_of_float(weights[i]);
      if (bits >> shift >> 10 == prefix) mass[bits >> shift & 1023] += weights[i];
    }
    uint32_t bucket = 0;
    for (uint32_t b = 1024; b-- > 0;) {
      if (mass[b] == 0) continue;
      bucket = b;
      if (mass[b] >= missing) break;
      missing -= mass[b];
    }
    prefix = prefix << 10 | bucket;
  }
  const float smallest = float_of_bits(prefix);
  for (int32_t i = 0; i < n; ++i) {
    if (weights[i] > smallest) continue;
    if (weights[i] < smallest || missing <= 0) {
      weights[i] = 0;
    } else {
      missing -= smallest;
    }
  }
}

void keep_at_least(float* weights, int32_t n, float threshold) {
  for (int32_t i = 0; i < n; ++i) weights[i] = weights[i] >= threshold ? weights[i] : 0.0f;
}

// The first place where the running sum of weights exceeds u times the total. u in [0, 1).
int32_t walk(const float* weights, int32_t n, double u) {
  const double target = u * sum_weights(weights, n);
  double sum = 0;
  int32_t last = 0;  // last place with weight seen, the answer should rounding leave the sum short
  for (int32_t start = 0; start < n; start += CHUNK) {
    const int32_t end = std::min(start + CHUNK, n);
    const double chunk = sum_chunk(weights + start, end - start);
    const bool inside = sum + chunk > target;
    double running = sum;
    for (int32_t i = start; inside && i < end; ++i) {
      if (weights[i] > 0) last = i;
      running += weights[i];
      if (running > target) return i;
    }
    if (inside) return last;
    sum += chunk;
  }
  for (int32_t i = n - 1; i > last; --i)
    if (weights[i] > 0) return i;
  return last;
}

uint64_t mix(uint64_t z) {  // the finaliser of splitmix64 (Steele, Lea, Flood 2014)
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

double log_sum_exp(const float* logits, int32_t num_vocab, float largest) {
  double sum = 0;
  float weights[CHUNK];
  for (int32_t start = 0; start < num_vocab; start += CHUNK) {
    const int32_t n = std::min(CHUNK, num_vocab - start);
    for (int32_t i = 0; i < n; ++i) weights[i] = exp_weight(logits[start + i] - largest);
    sum += sum_chunk(weights, n);
  }
  return largest + std::log(sum);
}

// The num_top largest logits in order, lower id first at ties; places beyond the vocabulary hold token -1.
void largest_logits(const float* logits, int32_t num_vocab, int32_t num_top, TopEntry* top) {
  std::fill(top, top + num_top, TopEntry{-1, NEG_INF});
  for (int32_t start = 0; start < num_vocab; start += CHUNK) {
    const int32_t end = std::min(start + CHUNK, num_vocab);
    if (!any_above(logits + start, end - start, top[num_top - 1].logprob)) continue;
    for (int32_t i = start; i < end; ++i) {
      if (!(logits[i] > top[num_top - 1].logprob)) continue;
      int32_t place = num_top - 1;
      for (; place > 0 && logits[i] > top[place - 1].logprob; --place) top[place] = top[place - 1];
      top[place] = {i, logits[i]};
    }
  }
}

}  // namespace

double uniform(uint64_t seed, uint64_t position) {
  constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15u;
  // Seeds are mixed first, so that neighbouring seeds do not walk the same stream a step apart.
  const uint64_t bits = mix(mix(seed + GOLDEN) + (position + 1) * GOLDEN);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

int32_t draw_token(float* logits, int32_t num_vocab, const Draw& draw, std::vector<TopEntry>& scratch) {
  apply_bias(logits, num_vocab, draw);
  apply_penalties(logits, num_vocab, draw, scratch);
  const int32_t best = most_likely(logits, num_vocab);
  const bool greedy = !(draw.temperature > 0) || draw.top_k == 1 || !(draw.top_p > 0);
  if (best < 0 || greedy || std::isinf(logits[best])) return best;

  const float largest = logits[best];
  const bool by_top_k = draw.top_k > 0 && draw.top_k < num_vocab;
  int32_t n = num_vocab;
  if (by_top_k) {  // the survivors' logits move to the front; scratch keeps their ids
    keep_top_k(logits, num_vocab, draw.top_k, scratch);
    n = static_cast<int32_t>(scratch.size());
    for (int32_t i = 0; i < n; ++i) logits[i] = scratch[static_cast<size_t>(i)].logprob;
  }
  to_weights(logits, n, largest, draw.temperature);
  if (draw.top_p < 1) keep_nucleus(logits, n, draw.top_p);
  if (draw.min_p > 0) keep_at_least(logits, n, draw.min_p);  // the best one's weight is 1
  const int32_t place = walk(logits, n, uniform(draw.seed, draw.position));
  return by_top_k ? scratch[static_cast<size_t>(place)].token : place;
}

float log_probabilities(const float* logits, int32_t num_vocab, int32_t token, int32_t num_top, TopEntry* top) {
  const int32_t best = most_likely(logits, num_vocab);
  const double norm = best < 0 ? std::numeric_limits<double>::quiet_NaN()
                               : log_sum_exp(logits, num_vocab, logits[best]);
  if (num_top > 0) largest_logits(logits, num_vocab, num_top, top);
  for (int32_t i = 0; i < num_top; ++i) top[i].logprob = static_cast<float>(top[i].logprob - norm);
  return static_cast<float>(logits[token] - norm);
}

}  // namespace headrace
