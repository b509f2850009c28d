// SPDX-License-Identifier: Apache-2.0
#include "team.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace headrace {

namespace {
inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

// Spin a little, since the other side is usually microseconds away, then let others have the core.
template <class Ready>
void spin_until(Ready ready) {
  for (int i = 0; i < 4096; ++i) {
    if (ready()) return;
    relax();
  }
  while (!ready()) std::this_thread::yield();
}
}  // namespace

Team::Team(int num_threads) : num_threads_(num_threads < 1 ? 1 : num_threads) {
  for (int i = 1; i < num_threads_; ++i) threads_.emplace_back([this, i] { serve(i); });
}

Team::~Team() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_.store(true);
    turn_.fetch_add(1);
  }
  wake_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void Team::run(const std::function<void(int)>& f) {
  if (num_threads_ == 1) {
    f(0);
    return;
  }
  work_ = &f;
  running_.store(num_threads_ - 1, std::memory_order_relaxed);
  {
    // The lock orders this against a thread that is about to sleep.
    std::lock_guard<std::mutex> lock(mutex_);
    turn_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  f(0);
  spin_until([this] { return running_.load(std::memory_order_acquire) == 0; });
}

void Team::serve(int thread) {
  uint64_t seen = 0;
  for (;;) {
    bool ready = false;
    for (int i = 0; i < 20000 && !ready; ++i) {
      ready = turn_.load(std::memory_order_acquire) != seen;
      if (!ready) relax();
    }
    if (!ready) {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return turn_.load(std::memory_order_acquire) != seen; });
    }
    seen = turn_.load(std::memory_order_acquire);
    if (closing_.load()) return;
    (*work_)(thread);
    running_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

void Team::barrier() {
  if (num_threads_ == 1) return;
  const uint32_t phase = phase_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == num_threads_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  spin_until([&] { return phase_.load(std::memory_order_acquire) != phase; });
}

}  // namespace headrace
