// Half a row of a tile of the residue encoder (residue_encode.cuh): a warp's 32 entries times a tile of weights. Four
// fragments, not eight, take half the registers, so that twice as many warps hide each other's latencies.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "mma.cuh"
#include "residue_encode_tables.cuh"

namespace jaxmd {
namespace JAXMD_ISA {

template <int kSteps>
struct EncodeRow {
  const EncodeLayout& layout;
  const unsigned char* shared;
  const uint32_t* words;  // of the lane's first entry
  int g, t, lane;
  uint32_t b[4][kSteps][2];  // chunk of the integers

  __device__ EncodeRow(const EncodeLayout& layout, const unsigned char* shared, int first, int lane)
      : layout(layout),
        shared(shared),
        words(reinterpret_cast<const uint32_t*>(shared + layout.integers) + first + lane % 4 * EncodeLayout::kWord +
              lane / 8 * 8 + lane / 4 % 2),
        g(lane / 4),
        t(lane % 4),
        lane(lane) {}

  __device__ void load(int first) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        if (s > 0 && first + s >= layout.steps) continue;
        const uint32_t* from = words + 8 * (first + s) * EncodeLayout::kWord + 2 * j;
        b[j][s][0] = from[0], b[j][s][1] = from[4 * EncodeLayout::kWord];
      }
    }
  }

  // sums[j]: rows g (entries 0, 1 of sums[j]) and g + 8 (2, 3) of the tile, entries 8 t + 2 j and
  // 8 t + 2 j + 1, because column c of fragment j is entry c / 2 * 8 + 2 j + c % 2.
  __device__ void multiply(int (&sums)[4][4], int tile, bool loaded) {
    const int4 first = reinterpret_cast<const int4*>(shared + layout.starts)[8 * tile + g];
    const int start[4] = {first.x, first.y, first.z, first.w};
    const uint4* weights = reinterpret_cast<const uint4*>(shared) + tile * layout.steps * 32 + lane;
    if (!loaded) load(0);
    const uint4 w = weights[0];
    const uint32_t a[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) MmaS8U8M16N8K32::run(sums[j], a, b[j][0], start);
    multiply_steps(sums, weights, 1, layout.steps);
    if (loaded) return;
#pragma unroll 1
    for (int first = kSteps; first < layout.steps; first += kSteps) {
      load(first);
      multiply_steps(sums, weights + first * 32, 0, layout.steps - first);
    }
  }

 private:
  __device__ void multiply_steps(int (&sums)[4][4], const uint4* weights, int from, int left) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if (s < from) continue;
      if (s >= left) break;
      const uint4 w = weights[s * 32];
      const uint32_t a[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) MmaS8U8M16N8K32::run(sums[j], a, b[j][s]);
    }
  }
};

}  // namespace JAXMD_ISA
}  // namespace jaxmd
