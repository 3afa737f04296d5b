// Large results in large pages, where the system leaves that to the program (Linux, transparent_hugepage = madvise).
//
// XLA:CPU takes large buffers fresh from the system at every call, and most of the cost of writing one for the first
// time is the page faults: without this, half of the encoding of four limbs at n = 1024 (71 MB, 17000 faults), and more
// than half of the sum of two vectors of four million numbers of two limbs (64 MB).
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace jaxmd {

// Advice for [p, p + bytes), a result about to be written, nothing for less than a large page. Advice is for whole
// large pages: XLA's buffers share theirs with their neighbours, and one advised in part comes in small pages.
inline void prefer_huge_pages(void* p, size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kHuge = 2 << 20;
  if (bytes < kHuge) return;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(p) / kHuge * kHuge;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(p) + bytes + kHuge - 1) / kHuge * kHuge;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)p;
  (void)bytes;
#endif
}

// Pages of [p, p + bytes), whole pages, may be taken back by the system until they are written again.
inline void allow_reclaim(void* p, size_t bytes) {
#if defined(__linux__) && defined(MADV_FREE)
  madvise(p, bytes, MADV_FREE);
#else
  (void)p;
  (void)bytes;
#endif
}

}  // namespace jaxmd
