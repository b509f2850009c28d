// SPDX-License-Identifier: Apache-2.0
// The one thread pool. run() enters a function on every thread at once; inside it the threads meet at
// barriers. The caller is thread 0.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>

namespace headrace {

class Team {
 public:
  // std::invalid_argument: fewer than one thread; std::system_error: the system gives no more.
  explicit Team(int num_threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return num_threads_; }
  // What f throws on one thread ends it on the others at their next barrier, and leaves run() when all have ended.
  // std::logic_error: another caller is inside. std::runtime_error: this process was forked off the threads' one.
  void run(const std::function<void(int)>& f);
  // Every thread inside run() calls it the same number of times.
  void barrier();

 private:
  struct Threads;  // and where they sleep
  struct Broken {};  // ends f on the threads that wait for one that threw

  void serve(int thread);
  void enter(int thread);
  void stop();
  bool was_forked() const;

  const int num_threads_;
  const int64_t process_;
  std::unique_ptr<Threads> threads_;
  std::atomic<bool> busy_{false};
  const std::function<void(int)>* work_ = nullptr;
  std::exception_ptr error_;
  alignas(64) std::atomic<uint64_t> turn_{0};
  std::atomic<bool> closing_{false};
  alignas(64) std::atomic<int> running_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
  std::atomic<bool> broken_{false};
};

}  // namespace headrace
