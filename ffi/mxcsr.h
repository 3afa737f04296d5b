// XLA:CPU runs its threads with flush-to-zero and denormals-are-zero set. While a GradualUnderflow lives, its thread
// computes with subnormals, rounding to nearest.
#pragma once

#include <cstdint>

#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>
#endif

namespace jaxmd {

class GradualUnderflow {
 public:
#if defined(__x86_64__) || defined(_M_X64)
  GradualUnderflow() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ & ~(0x8040u | 0x6000u)); }
  ~GradualUnderflow() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  GradualUnderflow() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    const uint64_t wanted = saved_ & ~((1ull << 24) | (3ull << 22));  // FZ, rounding mode
    asm volatile("msr fpcr, %0" : : "r"(wanted));
  }
  ~GradualUnderflow() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }

 private:
  uint64_t saved_;
#else
  GradualUnderflow() = default;
#endif
  GradualUnderflow(const GradualUnderflow&) = delete;
  GradualUnderflow& operator=(const GradualUnderflow&) = delete;
};

}  // namespace jaxmd
