// What a block of the residue encoder keeps in shared memory (residue_encode.cuh): bytes of 256^s mod p as fragments,
// constants of the moduli, words of the entries.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "product_shape.h"
#include "residue.cuh"

namespace jaxmd {
namespace JAXMD_ISA {

struct EncodeTask {
  LimbPointers<const double> limbs;
  const int32_t* exponent;  // [batch, rows]
  const int32_t* shift;     // [batch, k]
  const int32_t* weights;   // [ones + pairs, digits]: 2^(16 s) mod p, of two digits 129 times that; the largest s first
  const int32_t* moduli;    // [ones + pairs]
  int8_t* out;              // [ones + 3 pairs, batch, rows, kp]
  int64_t batch, rows, k, kp;
  int ones, pairs, digits, bits;
  bool transposed;  // side 1
};

constexpr int kEncodeThreads = 256, kEncodeRows = 8, kEncodeSpan = 64;  // rows and entries of k of a tile

// One two-digit modulus (residue_encode_pairs.cuh).
struct alignas(16) PairConstants {
  uint32_t minus_2p, factor;  // ceil(2^47 / p) - 2^32

  static __device__ PairConstants make(int32_t p) {
    return {static_cast<uint32_t>(-2 * p), static_cast<uint32_t>(((uint64_t{1} << 47) + p - 1) / p)};
  }
  // What the sums of low bytes start from. bias: 129 K mod p, of either sign.
  static __device__ int32_t start(int32_t p, int32_t bias) { return 2 * ((p << 15) + 128 * 129 - bias); }
};

// Shared memory of a block: tiles of moduli, then words of the entries. A tile has, at these bytes,
//   0            [8] times four: what the sums of rows g and g + 8 start from, each twice
//   kConstants   [16] or [8] times 16 bytes, of one-digit or two-digit moduli
//   kFragments   [steps][32 lanes] times 16 bytes of the weights
struct EncodeLayout {
  int words, steps;           // of an integer; k32 steps of the product: 1 or even
  int one_tiles, pair_tiles;  // of 16 and of 8 moduli
  int tile, integers, size;   // in bytes
  int row;                    // words from one row of entries to the next

  static constexpr int kConstants = 128, kFragments = 384;
  __host__ __device__ static constexpr int tile_bytes(int steps) { return kFragments + steps * 512; }

  static constexpr int kWord = 66;  // words from one word of an entry to the next: 64 entries, 2 mod 32

  __host__ __device__ EncodeLayout(int ones, int pairs, int bits) {
    words = word_count(bits);
    steps = words <= 8 ? 1 : (words + 15) / 16 * 2;
    one_tiles = (ones + 15) / 16;
    pair_tiles = (pairs + 7) / 8;
    tile = tile_bytes(steps);
    integers = (one_tiles + pair_tiles) * tile;
    row = (steps * 8 * kWord + 31) / 32 * 32 + 32 / kEncodeRows;  // lanes along rows or along k: no bank conflicts
    size = integers + kEncodeRows * row * 4;
  }
};

// Centred 2^exponent mod p, or 129 times that, continued from the table's 2^(16 (digits - 1)) where that ends.
__device__ inline int32_t power_mod(const EncodeTask& task, int modulus, int exponent) {
  const int32_t p = task.moduli[modulus];  // below 2^15, so that 32 bits are enough
  const int have = min(exponent / 16, task.digits - 1);
  int32_t r = task.weights[int64_t{modulus} * task.digits + task.digits - 1 - have];
  for (int left = exponent - 16 * have; left > 0; left -= 16) r = r * (1 << min(left, 16)) % p;
  return r < -(p / 2) ? r + p : r >= p - p / 2 ? r - p : r;
}

// Row i of the weights of tile `tile`, at byte s: of tiles of 16 one-digit moduli, then of 8 two-digit ones.
__device__ inline int32_t weight_byte(const EncodeTask& task, const EncodeLayout& layout, int tile, int row, int byte) {
  const bool pair = tile >= layout.one_tiles;
  const int modulus = pair ? task.ones + 8 * (tile - layout.one_tiles) + row % 8 : 16 * tile + row;
  if (byte >= 4 * layout.words || modulus >= (pair ? task.ones + task.pairs : task.ones)) return 0;
  const int32_t w = power_mod(task, modulus, 8 * byte);
  if (!pair) return w;
  const int32_t low = static_cast<int8_t>(2 * w);
  return row < 8 ? (2 * w - low) / 256 : low;
}

// How sums x of one-digit moduli are reduced.
//   kDirect:  x starts from M_0, a multiple of 256 p that keeps it at least 2^23: as an integer it then has, but for a
//             constant, the bits of the float f = M_0 + x. With Z = 1.5 2^23, q = rint(f / p + (Z - M_0 / p)) - Z is
//             one instruction and x - q p, in its low byte, another. Exact to 28 words: f < 2^24, and the float nearest
//             to 1/p makes f / p wrong by less than 0.5 / p for every p there is (tests/test_residues.py); x / p keeps
//             1 / (2 p) from a half, but p = 256, which has no rounding.
//   kInteger: to 33 words (quick_reducer).
enum class Reduction { kDirect, kInteger };

struct DirectStart {
  int32_t sum;   // what x starts from
  float offset;  // Z - M_0 / p
};
// bias: K mod p, |bias| <= p; least: the least sum there may be.
__device__ inline DirectStart direct_start(int32_t p, int32_t bias, int32_t least) {
  const int32_t multiple = ((1 << 23) + p - least) / (256 * p) + 1;
  return {0x4b000000 - (1 << 23) + multiple * 256 * p - bias, static_cast<float>((3 << 22) - 256 * multiple)};
}
__device__ __forceinline__ int direct_reduce(int minus_p, float inverse, float offset, int sum) {
  return __float_as_int(__fmaf_rn(__int_as_float(sum), inverse, offset)) * minus_p + sum;
}

// Of one row of a tile's weights: its product with the bytes of K, and the least there is with any bytes.
struct RowSums {
  int32_t bias = 0, least = 0;

  __device__ RowSums(const EncodeLayout& layout, const unsigned char* tile, int row) {
    for (int word = 0; word < layout.words; ++word) {
      const int at = (word / 8 * 32 + row % 8 * 4 + word % 4) * 4 + word % 8 / 4 * 2 + row / 8;
      const uint32_t weights = reinterpret_cast<const uint32_t*>(tile + layout.kFragments)[at];
      for (int b = 0; b < 32; b += 8) {
        const int32_t w = static_cast<int8_t>(weights >> b);
        bias += static_cast<int32_t>(bias_word(word, layout.words) >> b & 255) * w;
        least += 255 * min(w, 0);
      }
    }
  }
};

template <Reduction kReduction>
__device__ inline void fill_encode_tables(const EncodeTask& task, const EncodeLayout& layout, unsigned char* shared) {
  const int tiles = layout.one_tiles + layout.pair_tiles;
  for (int i = threadIdx.x; i < tiles * layout.steps * 128; i += kEncodeThreads) {
    const int place = i % 4, lane = i / 4 % 32, step = i / 128 % layout.steps, tile = i / 128 / layout.steps;
    const int row = lane / 4 + place % 2 * 8, byte = 32 * step + place / 2 * 16 + lane % 4 * 4;
    uint32_t packed = 0;
    for (int s = 0; s < 4; ++s) {
      const int32_t w = weight_byte(task, layout, tile, row, byte + s);
      packed |= (static_cast<uint32_t>(w) & 0xff) << (8 * s);
    }
    reinterpret_cast<uint32_t*>(shared + tile * layout.tile + layout.kFragments)[i % (layout.steps * 128)] = packed;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < task.ones; i += kEncodeThreads) {
    unsigned char* tile = shared + i / 16 * layout.tile;
    const RowSums sums(layout, tile, i % 16);
    const int32_t p = task.moduli[i], bias = sums.bias % p;
    int4 constants;
    int32_t start = -bias;
    if (kReduction == Reduction::kInteger) {
      const Reducer m = quick_reducer(p);
      constants = make_int4(p, m.factor, static_cast<int32_t>(m.offset), 0);
    } else {
      const DirectStart first = direct_start(p, bias, sums.least);
      constants = make_int4(-p, __float_as_int(__frcp_rn(static_cast<float>(p))), __float_as_int(first.offset), 0);
      start = first.sum;
    }
    reinterpret_cast<int4*>(tile + layout.kConstants)[i % 16] = constants;
    reinterpret_cast<int2*>(tile)[i % 8 * 2 + i % 16 / 8] = make_int2(start, start);
  }
  for (int i = threadIdx.x; i < task.pairs; i += kEncodeThreads) {
    unsigned char* tile = shared + (layout.one_tiles + i / 8) * layout.tile;
    const RowSums high(layout, tile, i % 8), low(layout, tile, i % 8 + 8);
    const int32_t p = task.moduli[task.ones + i];
    const int32_t start = PairConstants::start(p, (256 * high.bias + low.bias) / 2 % p);
    reinterpret_cast<PairConstants*>(tile + layout.kConstants)[i % 8] = PairConstants::make(p);
    reinterpret_cast<int4*>(tile)[i % 8] = make_int4(0, 0, start, start);
  }
}

__device__ inline uint32_t four_bytes(int a, int b, int c, int d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
