// parallel_for on XLA's thread pool.
//
// The range is cut into chunks that threads take from one counter. The caller takes chunks too and then waits only for
// chunks that a running thread has already taken, so it cannot deadlock even when every pool thread is busy or is
// itself a caller. A helper that starts late finds no chunk and leaves. Each thread computes under GradualUnderflow
// (mxcsr.h).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "mxcsr.h"
#include "xla/ffi/api/ffi.h"

namespace jaxmd {

// body(begin, end) for disjoint pieces that cover [0, n), each but the last a multiple of `grain` long. Ranges of at
// most one grain run in the caller alone. Choose grain so that a chunk costs about 20 µs or more. body must not throw.
template <class Body>
void parallel_for(xla::ffi::ThreadPool& pool, int64_t n, int64_t grain, Body body) {
  if (n <= 0) return;
  const int64_t chunks = (n + grain - 1) / grain;
  const int64_t threads = pool.num_threads() < chunks ? pool.num_threads() : chunks;
  if (threads <= 1) {
    const GradualUnderflow guard;
    body(int64_t{0}, n);
    return;
  }
  struct State {
    explicit State(Body b) : body(std::move(b)) {}
    Body body;
    std::atomic<int64_t> next{0};
    std::mutex mutex;
    std::condition_variable done;
    int64_t finished = 0;
  };
  const auto state = std::make_shared<State>(std::move(body));
  auto work = [state, n, grain, chunks] {
    const GradualUnderflow guard;
    int64_t mine = 0;
    for (int64_t c; (c = state->next.fetch_add(1, std::memory_order_relaxed)) < chunks; ++mine) {
      const int64_t begin = c * grain;
      state->body(begin, begin + grain < n ? begin + grain : n);
    }
    if (mine == 0) return;
    const std::lock_guard<std::mutex> lock(state->mutex);
    state->finished += mine;
    if (state->finished == chunks) state->done.notify_all();
  };
  for (int64_t t = 1; t < threads; ++t) {
    auto helper = work;
    pool.Schedule(std::move(helper));
  }
  work();
  std::unique_lock<std::mutex> lock(state->mutex);
  state->done.wait(lock, [&] { return state->finished == chunks; });
}

}  // namespace jaxmd
