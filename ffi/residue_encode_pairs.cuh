// Eight two-digit moduli of half a row of a tile of the residue encoder (residue_encode.cuh).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "residue_encode_lattice.cuh"
#include "residue_encode_row.cuh"

namespace jaxmd {
namespace JAXMD_ISA {

// Bytes 0 of the two fields of x and of y.
__device__ inline uint32_t low_bytes(uint32_t x, uint32_t y) { return __byte_perm(x, y, 0x6420); }

// `out`: where the lane's entries of channel 0 go.
template <int kSteps>
__device__ __forceinline__ void encode_pairs(const EncodeTask& task, EncodeRow<kSteps>& row, int tile, bool loaded,
                                             int8_t* out, int64_t channel_size, bool inside) {
  const int pair = 8 * (tile - row.layout.one_tiles) + row.g;
  const PairConstants m = reinterpret_cast<const PairConstants*>(row.shared + row.layout.pair_constants)[pair];
  const int start[4] = {0, 0, m.start, m.start};
  int sums[4][4];
  row.multiply(sums, start, tile, loaded);
  uint32_t packed[3][2];
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    DigitFields d[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int (&x)[4] = sums[2 * q + i];
      d[i] = m.digits(m.residue(x[0], x[2]), m.residue(x[1], x[3]));
    }
    packed[0][q] = low_bytes(d[0].a, d[1].a);
    packed[1][q] = low_bytes(d[0].b, d[1].b);
    packed[2][q] = low_bytes(d[0].sum, d[1].sum);
  }
  if (!inside || pair >= task.pairs) return;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    *reinterpret_cast<uint2*>(out + (task.ones + 3 * pair + i) * channel_size) = make_uint2(packed[i][0], packed[i][1]);
  }
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
