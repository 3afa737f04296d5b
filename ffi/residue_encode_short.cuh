// Residues of integers of two or four words, which one or two limbs make: what residue_encode.cuh does for any.
//
//   X = sum over limbs of round(limb 2^(bits - exponent_row - shift_k)),   out[channel] = X mod p, centred
//
// Shapes:  those of residue_encode.cuh; at most 16 kTiles one-digit moduli, no two-digit ones.
// Idea:    as there, with the words of residue_encode_cut.cuh.
// Tiling:  a warp makes 2 x 64 entries at a time (along rows 8 x 64) and waits for no other. First a lane an entry:
//          words to its warp's shared memory, limbs asked for four steps ahead. Then a row at a time: 8 fragments of 8
//          entries, their columns dealt so that a lane ends with 16 neighbours on k of each of its moduli, one 16-byte
//          store a channel. Constants stay in registers.
// Exact:   residue_encode_cut.cuh, Reduction::kDirect.
// Cost:    8 L bytes read and G written an entry; about 215 instructions for two limbs and 30
//          moduli, 90 of them reductions. On an H200 operands beyond L2 are read and written at 3.1 TB/s.
// Source:  this project's.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "mma.cuh"
#include "residue.cuh"
#include "residue_encode_tables.cuh"
#include "residue_encode_words.cuh"

namespace jaxmd {
namespace JAXMD_ISA {

// Rows of a tile. Along rows a warp should take in 64 bytes of each; else few leave time for the next tile's limbs.
__host__ __device__ constexpr int short_rows(bool transposed) { return transposed ? 8 : 2; }
constexpr int kShortWord = 72;  // words from one word of an entry to the next: 64 entries, 8 mod 32
// Words from one row of entries to the next: 4 mod 32, so that lanes along rows meet no bank conflicts.
__host__ __device__ constexpr int short_row(int words) { return (words * kShortWord + 31) / 32 * 32 + 4; }
__host__ constexpr int short_shared(int words, int rows) { return kEncodeThreads / 32 * rows * short_row(words) * 4; }
// Entry e = 16 i + r of a row: two more a sixteen, so that the columns of a fragment lie in different banks.
__device__ constexpr int short_entry(int e) { return e + e / 16 * 2; }

// Where a tile is: matrix b, rows from row0 on, entries of k from l0 on. Neighbours lie along what is contiguous in
// memory, so that warps share what a transaction brings.
struct ShortTile {
  uint32_t b, row0, l0;

  __device__ ShortTile(const EncodeTask& task, bool transposed, uint32_t tile) {
    const int tile_rows = short_rows(transposed);
    const uint32_t spans = static_cast<uint32_t>((task.kp + kEncodeSpan - 1) / kEncodeSpan);
    const uint32_t bands = static_cast<uint32_t>((task.rows + tile_rows - 1) / tile_rows);
    const uint32_t inner = transposed ? bands : spans, outer = transposed ? spans : bands;
    const uint32_t rest = tile / inner, first = tile - rest * inner;
    b = rest / outer;
    const uint32_t second = rest - b * outer;
    row0 = (transposed ? first : second) * tile_rows;
    l0 = (transposed ? second : first) * kEncodeSpan;
  }
};

// x mod p for |x| < 2^22, either of the two where p = 256 has a choice.
__device__ inline int32_t small_mod(int32_t x, int32_t p, float inverse) {
  return x - p * __float2int_rn(static_cast<float>(x) * inverse);
}
__device__ inline int32_t quad_sum(int32_t x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}
// The lane's part of the fragments of the weights, and the constants of its moduli: 16 i + 8 h + g.
template <int kTiles>
struct ShortModuli {
  uint32_t weights[kTiles][2];
  int start[kTiles][4];
  int minus_p[kTiles][2];
  float inverse[kTiles][2], offset[kTiles][2];

  template <int kWords>
  __device__ __forceinline__ void fill(const EncodeTask& task, int g, int t) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int modulus = min(16 * i + 8 * h + g, task.ones - 1);
        const int32_t p = task.moduli[modulus];
        const float reciprocal = __frcp_rn(static_cast<float>(p));
        int32_t constant = 0, least = 0;  // K mod p and the least sum, of the lane's bytes
        uint32_t packed = 0;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int digit = 2 * t + e, have = min(digit, task.digits - 1);
          int32_t power = t < kWords ? task.weights[int64_t{modulus} * task.digits + task.digits - 1 - have] : 0;
#pragma unroll 1
          for (int left = 2 * (digit - have); left > 0; --left) power = small_mod(256 * power, p, reciprocal);
          const int32_t next = small_mod(256 * power, p, reciprocal);
          const uint32_t half = t < kWords ? bias_word(t, kWords) >> (16 * e) : 0;
          constant += power * static_cast<int32_t>(half & 0xff) + next * static_cast<int32_t>(half >> 8 & 0xff);
          least += 255 * (min(power, 0) + min(next, 0));
          packed |= ((power & 0xffu) | (next & 0xffu) << 8) << (16 * e);
        }
        constant = small_mod(quad_sum(constant), p, reciprocal);
        const DirectStart first = direct_start(p, constant, quad_sum(least));
        weights[i][h] = packed;
        start[i][2 * h] = first.sum;
        start[i][2 * h + 1] = kept(first.sum);
        minus_p[i][h] = kept(-p);
        inverse[i][h] = reciprocal;
        offset[i][h] = first.offset;
      }
    }
  }

  // Low byte: centred x mod p.
  __device__ __forceinline__ int reduce(int i, int h, int sum) const {
    return direct_reduce(minus_p[i][h], inverse[i][h], offset[i][h], sum);
  }
};

template <int kWords, int kLimbs, int kTiles, bool kTransposed>
__global__ void __launch_bounds__(kEncodeThreads, 2)
    residue_encode_short_kernel(const __grid_constant__ EncodeTask task) {
  constexpr int kRow = short_row(kWords), kRows = short_rows(kTransposed), kSteps = 2 * kRows;
  constexpr int kGroup = 4;  // steps whose limbs are asked for at once
  extern __shared__ __align__(16) unsigned char encode_shared[];
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  uint32_t* own = reinterpret_cast<uint32_t*>(encode_shared) + threadIdx.x / 32 * (kRows * kRow);
  const uint32_t tiles = static_cast<uint32_t>((task.kp + kEncodeSpan - 1) / kEncodeSpan *
                                               ((task.rows + kRows - 1) / kRows) * task.batch);
  const uint32_t stride = gridDim.x * (kEncodeThreads / 32);
  const int64_t channel_size = task.batch * task.rows * task.kp;
  ShortModuli<kTiles> m;
  m.template fill<kWords>(task, g, t);
  // of the lane's entry of step 0; a step goes on by half a row, or by 4 entries of k
  const int row_in = kTransposed ? lane % kRows : 0, l_in = kTransposed ? lane / kRows : lane;
  const int write = kept(row_in * kRow + short_entry(l_in));
  const int read = kept(t % kWords * kShortWord + short_entry(g / 2 * 16) + g % 2);
  const auto row = [](int step) { return kTransposed ? 0 : step / 2; };
  const auto l = [](int step) { return kTransposed ? step * (32 / kRows) : step % 2 * 32; };
  const auto left = [](int64_t all, uint32_t from) {  // of `all` entries from `from` on, as far as a tile may reach
    return static_cast<int>(min(int64_t{kEncodeSpan}, all - from));
  };
  const auto offset = [&](const ShortTile& at, int step) {
    const int64_t i = int64_t{at.row0} + row(step) + row_in, k = int64_t{at.l0} + l(step) + l_in;
    return kTransposed ? (at.b * task.k + k) * task.rows + i : (at.b * task.rows + i) * task.k + k;
  };
  double ahead[kGroup][kLimbs];  // of the next steps: nothing is computed from them before their turn
  int exponent_ahead[kGroup], shift_ahead[kGroup];
  const auto load = [&](const ShortTile& at, int from) {
    const int rows_left = left(task.rows, at.row0) - row_in - row(from), l_left = left(task.k, at.l0) - l_in - l(from);
    const int32_t* const exponent = task.exponent + at.b * task.rows + at.row0 + row_in + row(from);
    const int32_t* const shift = task.shift + at.b * task.k + at.l0 + l_in + l(from);
    const int64_t first = offset(at, from);
    const double* limb[kLimbs];
#pragma unroll
    for (int c = 0; c < kLimbs; ++c) limb[c] = task.limbs.limb[c] + first;
#pragma unroll
    for (int s = 0; s < kGroup; ++s) {
      // kGroup steps begin at a whole row: row(from + s) = row(from) + row(s), and so for l
      const bool here = row(s) < rows_left && l(s) < l_left;
      exponent_ahead[s] = here ? exponent[row(s)] : 0;
      shift_ahead[s] = here ? shift[l(s)] : 0;
      const int64_t on = kTransposed ? l(s) * task.rows : row(s) * task.k + l(s);
#pragma unroll
      for (int c = 0; c < kLimbs; ++c) ahead[s][c] = here ? limb[c][on] : 0.0;
    }
  };
  uint32_t tile = blockIdx.x * (kEncodeThreads / 32) + threadIdx.x / 32;
  ShortTile next(task, kTransposed, tile);
  if (tile < tiles) load(next, 0);
  for (; tile < tiles; tile += stride) {
    const ShortTile at = next;
    next = ShortTile(task, kTransposed, tile + stride);
#pragma unroll 1
    for (int from = 0; from < kSteps; from += kGroup) {
      double x[kGroup][kLimbs];
      int units[kGroup];
#pragma unroll
      for (int s = 0; s < kGroup; ++s) {
        units[s] = task.bits - exponent_ahead[s] - shift_ahead[s];
#pragma unroll
        for (int c = 0; c < kLimbs; ++c) x[s][c] = ahead[s][c];
      }
      if (from + kGroup < kSteps) {
        load(at, from + kGroup);
      } else if (stride < tiles - tile) {
        load(next, 0);
      }
#pragma unroll
      for (int s = 0; s < kGroup; ++s) {
        const int step = from + s;
        CutInteger<kWords, kLimbs> sum(units[s]);
#pragma unroll
        for (int c = 0; c < kLimbs; ++c) sum.add(c, x[s][c]);
        const int place = kTransposed ? short_entry(step * (32 / kRows)) : step / 2 * kRow + short_entry(step % 2 * 32);
        const WordColumn to{own + write + place, kShortWord};
        if (sum.plain()) {
          sum.finish([&](int w, uint32_t word) { to(w) = word; });
        } else {
          const bool here = at.row0 + row(step) + row_in < task.rows && at.l0 + l(step) + l_in < task.k;
          store_any_integer(task, to, kWords, here ? offset(at, step) : -1, units[s]);
        }
      }
    }
    __syncwarp();
    int8_t* out = task.out + (at.b * task.rows + at.row0) * task.kp + at.l0 + 16 * t + g * channel_size;
    const int ones = at.l0 + 16 * t < task.kp ? task.ones - g : 0;
    const uint32_t* from = own + read;
#pragma unroll 1
    for (int r = min(kRows, left(task.rows, at.row0)); r > 0; --r, out += task.kp, from += kRow) {
      uint32_t b[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) b[j] = from[2 * j];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        int sums[8][4];
#pragma unroll
        for (int j = 0; j < 8; ++j) MmaS8U8M16N8K16::run(sums[j], m.weights[i], b[j], m.start[i]);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          uint32_t packed[4];
#pragma unroll
          for (int q = 0; q < 4; ++q) {
            int residue[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              residue[e] = m.reduce(i, h, sums[2 * q + e / 2][2 * h + e % 2]);
            }
            packed[q] = four_bytes(residue[0], residue[1], residue[2], residue[3]);
          }
          if (16 * i + 8 * h < ones) {
            *reinterpret_cast<uint4*>(out + (16 * i + 8 * h) * channel_size) =
                make_uint4(packed[0], packed[1], packed[2], packed[3]);
          }
        }
      }
    }
    __syncwarp();
  }
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
