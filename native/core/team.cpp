// SPDX-License-Identifier: Apache-2.0
#include "team.h"

#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace headrace {

namespace {
// The other side is usually microseconds away, so it pays to stay on the core that long. Longer, a thread would
// keep the core from the one it waits for, wherever threads outnumber the cores that are free.
constexpr int kPauses = 256;
constexpr int kIdleYields = 2000;  // of a thread without work, before it sleeps: about the pause between two steps

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");  // some ten cycles; `yield` takes none on most of them
#else
  std::this_thread::yield();
#endif
}

// Whether it became ready within so many times of letting others have the core.
template <class Ready>
bool wait_a_while(int64_t num_yields, Ready ready) {
  for (int i = 0; i < kPauses; ++i) {
    if (ready()) return true;
    relax();
  }
  for (int64_t i = 0; i < num_yields; ++i) {
    if (ready()) return true;
    std::this_thread::yield();
  }
  return false;
}

template <class Ready>
void wait(Ready ready) {
  while (!wait_a_while(1 << 20, ready)) {
  }
}
}  // namespace

struct Team::Threads {
  std::vector<std::thread> threads;
  std::mutex mutex;  // guards turn_ against a thread that is about to sleep, and error_
  std::condition_variable wake;
};

Team::Team(int num_threads)
    : num_threads_(num_threads),
      process_(getpid()),
      threads_(std::make_unique<Threads>()) {
  if (num_threads < 1)
    throw std::invalid_argument("a team has at least one thread, not " + std::to_string(num_threads));
  try {
    for (int i = 1; i < num_threads; ++i) threads_->threads.emplace_back([this, i] { serve(i); });
  } catch (...) {
    stop();
    throw;
  }
}

Team::~Team() {
  // In a forked process there is nothing to join, and what the threads slept on cannot be taken down.
  if (was_forked())
    static_cast<void>(threads_.release());
  else
    stop();
}

bool Team::was_forked() const { return getpid() != process_; }

void Team::stop() {
  {
    std::lock_guard<std::mutex> lock(threads_->mutex);
    closing_.store(true);
    turn_.fetch_add(1);
  }
  threads_->wake.notify_all();
  for (auto& thread : threads_->threads) thread.join();
}

void Team::run(const std::function<void(int)>& f) {
  if (busy_.exchange(true)) throw std::logic_error("the compute threads serve one caller at a time");
  struct Leave {
    std::atomic<bool>& busy;
    ~Leave() { busy.store(false); }
  } leave{busy_};
  if (num_threads_ == 1) return f(0);
  if (was_forked())
    throw std::runtime_error(
        "the compute threads stayed in the process that this one was forked from; load the model here");
  work_ = &f;
  running_.store(num_threads_ - 1, std::memory_order_relaxed);
  {
    std::lock_guard<std::mutex> lock(threads_->mutex);
    turn_.fetch_add(1, std::memory_order_release);
  }
  threads_->wake.notify_all();
  enter(0);
  wait([this] { return running_.load(std::memory_order_acquire) == 0; });
  if (!broken_.load(std::memory_order_relaxed)) return;
  broken_.store(false, std::memory_order_relaxed);
  arrived_.store(0, std::memory_order_relaxed);
  std::rethrow_exception(std::exchange(error_, nullptr));
}

void Team::enter(int thread) {
  try {
    (*work_)(thread);
  } catch (const Broken&) {
  } catch (...) {
    std::lock_guard<std::mutex> lock(threads_->mutex);
    if (!error_) error_ = std::current_exception();
    broken_.store(true, std::memory_order_release);
  }
}

void Team::serve(int thread) {
  uint64_t seen = 0;
  const auto has_turned = [&] { return turn_.load(std::memory_order_acquire) != seen; };
  for (;;) {
    if (!wait_a_while(kIdleYields, has_turned)) {
      std::unique_lock<std::mutex> lock(threads_->mutex);
      threads_->wake.wait(lock, has_turned);
    }
    seen = turn_.load(std::memory_order_acquire);
    if (closing_.load()) return;
    enter(thread);
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
  wait([&] {
    if (broken_.load(std::memory_order_relaxed)) throw Broken{};
    return phase_.load(std::memory_order_acquire) != phase;
  });
}

}  // namespace headrace
