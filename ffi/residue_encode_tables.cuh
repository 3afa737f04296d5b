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
  const int32_t* weights;   // [ones + pairs, digits]: 2^(16 s) mod p, the largest s first
  const int32_t* moduli;    // [ones + pairs]
  const int32_t* lattice;   // [pairs, 4]
  int8_t* out;              // [ones + 3 pairs, batch, rows, kp]
  int64_t batch, rows, k, kp;
  int ones, pairs, digits, bits;
  bool transposed;  // side 1
};

constexpr int kEncodeThreads = 256, kEncodeSpan = 64;  // entries of k in a tile
constexpr int kEncodeAhead = 2;  // limbs, the last ones, that integers of four words ask for a tile ahead

// Shared memory of a block: fragments of the weights, constants of the moduli, words of the entries.
struct EncodeLayout {
  int words, steps;                      // of an integer; k16 steps of the product
  int one_tiles, pair_tiles;             // of 16 and of 8 moduli
  int constants, ahead, integers, size;  // offsets in bytes
  int row;                               // words from one row of entries to the next
  int tile;                              // words from one tile of entries to the next, where there are two

  static constexpr int kWord = 72;  // words from one word of an entry to the next: 64 entries, 8 mod 32

  __host__ __device__ EncodeLayout(int ones, int pairs, int bits, int rows) {
    words = word_count(bits);
    steps = (words + 3) / 4;
    one_tiles = (ones + 15) / 16;
    pair_tiles = (pairs + 7) / 8;
    constants = (one_tiles + pair_tiles) * steps * 256;
    ahead = constants + one_tiles * 256 + pair_tiles * 384;
    integers = ahead + (steps == 1 ? rows * kEncodeSpan * (kEncodeAhead + 1) * 8 : 0);
    row = steps * 4 * kWord + 32 / rows;  // lanes along rows or along k: no bank conflicts
    tile = rows * row;
    size = integers + (steps == 1 ? 2 : 1) * tile * 4;
  }

  // Entry e = 16 i + r of a row: two more a sixteen, so that the columns of a fragment lie in different banks.
  static __host__ __device__ int entry(int e) { return e + e / 16 * 2; }
  // Entry that column c of fragment j holds, and its place.
  static __host__ __device__ int column_entry(int c, int j) { return c / 2 * 16 + 2 * j + c % 2; }
};

// Centred 2^exponent mod p, continued from the table's 2^(16 (digits - 1)) where that ends.
__device__ inline int32_t power_mod(const EncodeTask& task, int modulus, int exponent) {
  const int32_t p = task.moduli[modulus];
  const int have = min(exponent / 16, task.digits - 1);
  int64_t r = task.weights[int64_t{modulus} * task.digits + task.digits - 1 - have];
  for (int left = exponent - 16 * have; left > 0; left -= 16) r = r * (1 << min(left, 16)) % p;
  r %= p;
  return static_cast<int32_t>(r < -(p / 2) ? r + p : r >= p - p / 2 ? r - p : r);
}

// Row i of the weights of tile `tile`, at byte s: of tiles of 16 one-digit moduli, then of 8 two-digit ones.
__device__ inline int32_t weight_byte(const EncodeTask& task, const EncodeLayout& layout, int tile, int row, int byte) {
  const bool pair = tile >= layout.one_tiles;
  const int modulus = pair ? task.ones + 8 * (tile - layout.one_tiles) + row % 8 : 16 * tile + row;
  if (byte >= 4 * layout.words || modulus >= (pair ? task.ones + task.pairs : task.ones)) return 0;
  const int32_t w = power_mod(task, modulus, 8 * byte);
  if (!pair) return w;
  const int32_t low = static_cast<int8_t>(w);
  return row < 8 ? (w - low) / 256 : low;
}

// kFloat: sums of one-digit moduli are reduced in float32.
constexpr uint32_t kFloatSum = 0x4b400000;  // 1.5 2^23: bits of a float, to which integers below 2^22 may be added
template <bool kFloat>
__device__ inline void fill_encode_tables(const EncodeTask& task, const EncodeLayout& layout, unsigned char* shared) {
  const int tiles = layout.one_tiles + layout.pair_tiles;
  for (int i = threadIdx.x; i < tiles * layout.steps * 64; i += kEncodeThreads) {
    const int half = i % 2, lane = i / 2 % 32, step = i / 64 % layout.steps, tile = i / 64 / layout.steps;
    uint32_t packed = 0;
    for (int s = 0; s < 4; ++s) {
      const int32_t w = weight_byte(task, layout, tile, lane / 4 + 8 * half, 16 * step + lane % 4 * 4 + s);
      packed |= (static_cast<uint32_t>(w) & 0xff) << (8 * s);
    }
    reinterpret_cast<uint32_t*>(shared)[i] = packed;
  }
  int4* constants = reinterpret_cast<int4*>(shared + layout.constants);
  const int top = 32 * layout.words - 1;
  for (int i = threadIdx.x; i < layout.one_tiles * 16 + layout.pair_tiles * 8; i += kEncodeThreads) {
    if (i < layout.one_tiles * 16) {
      if (i >= task.ones) {
        constants[i] = make_int4(1, 0, 0, 0);
        continue;
      }
      const Reducer m = quick_reducer(task.moduli[i]);
      const int32_t start = -power_mod(task, i, top);
      constants[i] = kFloat ? make_int4(-m.modulus, __float_as_int(__frcp_rn(static_cast<float>(m.modulus))), 0,
                                        static_cast<int32_t>(kFloatSum) + start)
                            : make_int4(m.modulus, m.factor, static_cast<int32_t>(m.offset), start);
    } else {
      const int j = i - layout.one_tiles * 16;
      int4* to = constants + layout.one_tiles * 16 + 3 * j;
      to[0] = to[1] = to[2] = make_int4(1, 0, 0, 0);
      if (j >= task.pairs) continue;
      const int modulus = task.ones + j;
      const FloorReducer m = make_floor_reducer(task.moduli[modulus]);
      const Lattice v = make_lattice(m.modulus, task.lattice + int64_t{4} * j);
      to[0] = make_int4(m.modulus, static_cast<int32_t>(m.factor), m.lift - power_mod(task, modulus, top), 0);
      to[1] = make_int4(v.factor_n, v.factor_l, 0, 0);
      to[2] = make_int4(v.va, v.vb, v.wa, v.wb);
    }
  }
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
