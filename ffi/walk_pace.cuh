// Keeps blocks that walk over tiles within a part of a tile of each other, so that they find their operands in L2.
//
// Blocks that run side by side share rows of A and columns of B while they are at about the same place along k. Nothing
// holds a block back that gets ahead, and where the operands of all running tiles do not fit L2, each that is elsewhere
// reads them from memory again.
//
// Pace:    the thread that copies (in a cluster, that of its first block) counts itself into `progress` after every
//          `every` stages and waits there for the others. In the last wave, where not all have a tile, none waits.
// Safe:    after kPatience cycles a block waits no more: others may not run yet, behind another kernel. Two walks may
//          count into one word. Results do not depend on any of it.
// Gain:    on one H200 the residue product (30 channels, tiles of 256 x 256, launched again and again) made 1380 to
//          1440 TOPS without and 1505 with it at 4096 x 16384 x 16384, 1437 and 1465 at 2048 x 8192 x 8192, and the
//          same with k = 4096. single_wgmma.cuh, bound by power elsewhere, gained nothing.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "kernel_launch.cuh"

namespace jaxmd {

struct Pace {
  unsigned* progress;
  int every;  // stages; 0: no pace
};

class Pacer {
 public:
  __device__ Pacer(const Pace& pace, uint32_t walkers)
      : progress_(pace.progress), every_(pace.every), left_(pace.every), walkers_(walkers) {}

  // Before each stage of a tile of a full wave.
  __device__ __forceinline__ void step() {
    if (every_ == 0 || --left_ > 0) return;
    left_ = every_;
    expected_ += walkers_;
    atomicAdd(progress_, 1u);
    const long long start = clock64();
    while (patient_ && static_cast<int>(expected_ - *const_cast<volatile unsigned*>(progress_)) > 0) {
      patient_ = clock64() - start < kPatience;
      __nanosleep(20);
    }
  }

 private:
  static constexpr long long kPatience = 1 << 17;
  unsigned* const progress_;
  const int every_;
  int left_;
  const uint32_t walkers_;
  unsigned expected_ = 0;
  bool patient_ = true;
};

constexpr unsigned kMostWalks = 256;  // with a word of their own at one time
static __device__ unsigned walk_progress[kMostWalks];

// The pace of a walk whose tiles have `steps` stages along k; tiles that run at once read `bytes`.
static cudaError_t start_pace(Pace* pace, int steps, int64_t bytes, cudaStream_t stream) {
  static std::once_flag once[kMostDevices];
  static void* words[kMostDevices] = {};
  static std::atomic<unsigned> next{0};
  constexpr int64_t kLeast = 24 << 20;  // what is less stays in L2 (of an H200) without a pace
  *pace = {nullptr, 0};
  if (bytes < kLeast) return cudaSuccess;
  int ordinal;
  const cudaError_t status = current_device(&ordinal).status;
  if (status != cudaSuccess) return status;
  std::call_once(once[ordinal], [&] {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;  // loading is no part of a capture
    if (cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess) return;
    if (cudaGetSymbolAddress(&words[ordinal], walk_progress) != cudaSuccess) words[ordinal] = nullptr;
    cudaThreadExchangeStreamCaptureMode(&mode);
  });
  if (words[ordinal] == nullptr) return cudaErrorInvalidSymbol;
  pace->progress = static_cast<unsigned*>(words[ordinal]) + next++ % kMostWalks;
  pace->every = std::max(1, steps / 4);
  return cudaMemsetAsync(pace->progress, 0, sizeof(unsigned), stream);
}

}  // namespace jaxmd
