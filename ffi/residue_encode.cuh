// Residues of the integers behind multiple doubles, both operands with k contiguous.
//
//   X = sum over limbs of round(limb 2^(bits - exponent_row - shift_k)),   out[channel] = X mod p, centred
//
// Shapes:  limbs [batch, rows, k] (side 0) or [batch, k, rows] (side 1), exponent [batch, rows], shift [batch, k],
//          out [G, batch, rows, kp]; zeros from k to kp. Moduli [N]: n1 one-digit, n2 = N - n1 two-digit ones.
// Idea:    X mod p = sum over bytes of X of byte_s (256^s mod p): an int8 product of a table [moduli, bytes] with the
//          words of X, which as they stand are the operand of m16n8k32 (bytes 4 t .. 4 t + 3, and those 16 on, of
//          column g in lane 4 g + t). A two-digit modulus takes two rows, high and low byte of its doubled weights. A
//          constant K is added to X and taken off again by the sums' start, so that all bytes are unsigned.
// Tiling:  a block makes 8 x 64 entries at a time. First a thread an entry: limbs -> words in shared memory (side 1
//          reads along rows and so transposes; one or two limbs: residue_encode_short.cuh).
//          Then a warp half a row: 4 fragments of 8 entries, their columns dealt so that a lane ends with 8 neighbours
//          on k of each of its moduli, one 8-byte store a channel.
// Exact:   |sums| < 2^23 (one-digit; Reduction) and, of high and low bytes together, 0 to 2^32 (two-digit).
// Cost:    8 L bytes read and G written an entry; instructions an entry: 45 a limb of a normalized entry, 5 a one-digit
//          modulus (to 28 words), 13 a two-digit one, of which 0.25 and 0.5 every 8 words are products.
// Source:  the byte x weight product is this project's; _residues.py for all else.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "mma.cuh"
#include "residue.cuh"
#include "residue_encode_pairs.cuh"
#include "residue_encode_tables.cuh"
#include "residue_encode_words.cuh"

namespace jaxmd {
namespace JAXMD_ISA {

// `out`: where the lane's entries of channel g of the tile go. left: how many channels there are from it on.
template <bool kLoaded, Reduction kReduction, int kSteps>
__device__ __forceinline__ void encode_ones(EncodeRow<kSteps>& row, const unsigned char* tile, int8_t* out,
                                            int64_t eight_channels, int left) {
  const int4* constants = reinterpret_cast<const int4*>(tile + EncodeLayout::kConstants) + row.g;
  const int4 m[2] = {constants[0], constants[8]};
  int sums[4][4];
  row.template multiply<kLoaded>(sums, tile);
#pragma unroll
  for (int half = 0; half < 2; ++half, out += eight_channels) {
    if (left <= 8 * half) return;
    uint32_t packed[2];
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      int r[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int sum = sums[2 * q + i / 2][2 * half + i % 2];
        r[i] = kReduction == Reduction::kDirect
                   ? direct_reduce(m[half].x, __int_as_float(m[half].y), __int_as_float(m[half].z), sum)
                   : quick_reduce(m[half].x, m[half].y, static_cast<uint32_t>(m[half].z), sum);
      }
      packed[q] = four_bytes(r[0], r[1], r[2], r[3]);
    }
    *reinterpret_cast<uint2*>(out) = make_uint2(packed[0], packed[1]);
  }
}

// kSteps: k32 steps whose integers a warp holds in registers; all of them if kWhole. kWords, kLimbs: 0 for any.
template <int kSteps, bool kWhole, int kWords, int kLimbs>
__global__ void __launch_bounds__(kEncodeThreads, kSteps > 2 ? 2 : 3)
    residue_encode_kernel(const __grid_constant__ EncodeTask task) {
  constexpr bool kShort = kWhole && (kWords == 0 ? kSteps <= 2 : kWords <= 28);
  constexpr Reduction kReduction = kShort ? Reduction::kDirect : Reduction::kInteger;
  extern __shared__ __align__(16) unsigned char encode_shared[];
  const EncodeLayout layout(task.ones, task.pairs, task.bits);
  const uint32_t tiles = static_cast<uint32_t>((task.kp + kEncodeSpan - 1) / kEncodeSpan *
                                               ((task.rows + kEncodeRows - 1) / kEncodeRows) * task.batch);
  const int64_t channel_size = task.batch * task.rows * task.kp, eight_channels = 8 * channel_size;
  const int step = kWhole ? EncodeLayout::tile_bytes(kSteps) : layout.tile;  // from one tile of moduli to the next
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t* integers = reinterpret_cast<uint32_t*>(encode_shared + layout.integers);
  fill_encode_tables<kReduction>(task, layout, encode_shared);
  for (uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const EncodeTile at(task, tile);
    __syncthreads();  // the tables are written; the last tile's integers are read
    if constexpr (kLimbs > 0) {
      store_cut_integers<kWords, kLimbs>(task, layout, integers, at);
    } else {
      store_integers(task, layout, integers, at);
    }
    __syncthreads();
#pragma unroll 1
    for (int unit = warp; unit < 2 * kEncodeRows; unit += kEncodeThreads / 32) {
      const int r = unit / 2, first = unit % 2 * (kEncodeSpan / 2);
      if (at.row0 + r >= task.rows) break;
      EncodeRow<kSteps> row(layout, encode_shared, r * layout.row + first, lane);
      if (kWhole) row.load(0);
      const int64_t l = int64_t{at.l0} + first + 8 * row.t;
      int8_t* out = task.out + (at.b * task.rows + at.row0 + r) * task.kp + l;
      const unsigned char *moduli = encode_shared, *end = moduli + layout.one_tiles * step;
      int left = l < task.kp ? task.ones - row.g : 0;
      int8_t* channel = out + row.g * channel_size;
#pragma unroll 1
      for (; moduli < end; moduli += step, left -= 16, channel += 2 * eight_channels) {
        encode_ones<kWhole, kReduction>(row, moduli, channel, eight_channels, left);
      }
      end += layout.pair_tiles * step;
      left = l < task.kp ? task.pairs - row.g : 0;
      channel = out + (task.ones + 3 * row.g) * channel_size;
#pragma unroll 1
      for (; moduli < end; moduli += step, left -= 8, channel += 3 * eight_channels) {
        encode_pairs<kWhole>(row, moduli, channel, channel_size, left > 0);
      }
    }
  }
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
