// Scratch of a handler that is kept for the next call.
//
// Memory fresh from the system is zeroed page by page when it is first written, and its zeros push everything else out
// of the caches: 20 ms of the 125 ms of processor time of a double-double product of n = 1024 with AMX. XLA's own
// scratch is always fresh when it is large, because glibc returns blocks above 32 MB as soon as they are free.
//
// At most kMost bytes are kept by a process, in blocks that no call uses at the moment. While they are idle the system
// may take their pages back (MADV_FREE) where memory runs short.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <list>
#include <mutex>

#include "huge_pages.h"

namespace jaxmd {

class KeptMemory {
 public:
  static constexpr size_t kAlign = 2 << 20;  // a large page
  static constexpr size_t kMost = 512 << 20;

  // At least `bytes` of anything; data() is null where the system has no more.
  explicit KeptMemory(size_t bytes) {
    bytes = (bytes + kAlign - 1) / kAlign * kAlign;
    {
      Pool& pool = kept();
      const std::lock_guard<std::mutex> lock(pool.mutex);
      auto best = pool.blocks.end();
      for (auto it = pool.blocks.begin(); it != pool.blocks.end(); ++it) {
        if (it->size >= bytes && (best == pool.blocks.end() || it->size < best->size)) best = it;
      }
      if (best != pool.blocks.end()) {
        block_ = *best;
        pool.blocks.erase(best);
        return;
      }
    }
    block_ = {std::aligned_alloc(kAlign, bytes), bytes};
    if (block_.data != nullptr) prefer_huge_pages(block_.data, bytes);
  }

  ~KeptMemory() {
    if (block_.data == nullptr) return;
    if (block_.size > kMost) {
      std::free(block_.data);
      return;
    }
    allow_reclaim(block_.data, block_.size);
    Pool& pool = kept();
    const std::lock_guard<std::mutex> lock(pool.mutex);
    pool.blocks.push_front(block_);  // the oldest is last
    size_t total = 0;
    for (auto it = pool.blocks.begin(); it != pool.blocks.end();) {
      total += it->size;
      if (total > kMost) {
        std::free(it->data);
        it = pool.blocks.erase(it);
      } else {
        ++it;
      }
    }
  }

  KeptMemory(const KeptMemory&) = delete;
  KeptMemory& operator=(const KeptMemory&) = delete;

  char* data() const { return static_cast<char*>(block_.data); }

 private:
  struct Block {
    void* data;
    size_t size;
  };
  struct Pool {
    std::mutex mutex;
    std::list<Block> blocks;
  };

  // Never destroyed: a call may still run when the process ends.
  static Pool& kept() {
    static Pool* const pool = new Pool;
    return *pool;
  }

  Block block_;
};

}  // namespace jaxmd
