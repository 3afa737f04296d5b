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
  const uint32_t* words;  // of the lane's first entry
  int g, t, lane;
  uint32_t b[4][kSteps][2];  // chunk of the integers

  __device__ EncodeRow(const EncodeLayout& layout, const unsigned char* shared, int first, int lane)
      : layout(layout),
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
        const uint32_t* from = words + 8 * (first + s) * EncodeLayout::kWord + 2 * j;
        b[j][s][0] = from[0], b[j][s][1] = from[4 * EncodeLayout::kWord];
      }
    }
  }

  // sums[j]: rows g (entries 0, 1 of sums[j]) and g + 8 (2, 3) of the tile of moduli, entries 8 t + 2 j and
  // 8 t + 2 j + 1, because column c of fragment j is entry c / 2 * 8 + 2 j + c % 2. kLoaded: kSteps are all steps.
  template <bool kLoaded>
  __device__ void multiply(int (&sums)[4][4], const unsigned char* tile) {
    const int4 first = reinterpret_cast<const int4*>(tile)[g];
    const int start[4] = {first.x, first.y, first.z, first.w};
    const uint4* weights = reinterpret_cast<const uint4*>(tile + EncodeLayout::kFragments) + lane;
    if (!kLoaded) load(0);
    const uint4 w = weights[0];
    const uint32_t a[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) MmaS8U8M16N8K32::run(sums[j], a, b[j][0], start);
    multiply_steps<1>(sums, weights);
    if constexpr (!kLoaded) {
#pragma unroll 1
      for (int from = kSteps; from < layout.steps; from += kSteps) {
        load(from);
        multiply_steps<0>(sums, weights + from * 32);
      }
    }
  }

 private:
  template <int kFrom>
  __device__ void multiply_steps(int (&sums)[4][4], const uint4* weights) {
#pragma unroll
    for (int s = kFrom; s < kSteps; ++s) {
      const uint4 w = weights[s * 32];
      const uint32_t a[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) MmaS8U8M16N8K32::run(sums[j], a, b[j][s]);
    }
  }
};

}  // namespace JAXMD_ISA
}  // namespace jaxmd
