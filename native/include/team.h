// SPDX-License-Identifier: Apache-2.0
// The one thread pool. run() enters a function on every thread at once; inside it the threads meet at
// barriers. The caller is thread 0.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace headrace {

class Team {
 public:
  explicit Team(int num_threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return num_threads_; }
  // One caller at a time. Exceptions must not leave f.
  void run(const std::function<void(int)>& f);
  // Every thread inside run() calls it the same number of times.
  void barrier();

 private:
  void serve(int thread);

  const int num_threads_;
  std::vector<std::thread> threads_;
  const std::function<void(int)>* work_ = nullptr;
  alignas(64) std::atomic<uint64_t> turn_{0};
  alignas(64) std::atomic<int> running_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
  std::atomic<bool> closing_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace headrace
