// What a block of the residue encoder keeps in shared memory (residue_encode.cuh): bytes of 256^s mod p as fragments,
// constants of the moduli, words of the entries.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "product_shape.h"
#include "residue.cuh"
#include "residue_encode_lattice.cuh"

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

// Shared memory of a block: fragments of the weights, constants of the moduli, words of the entries.
struct EncodeLayout {
  int words, steps;                               // of an integer; k16 steps of the product
  int one_tiles, pair_tiles;                      // of 16 and of 8 moduli
  int constants, pair_constants, integers, size;  // offsets in bytes
  int row;                                        // words from one row of entries to the next

  static constexpr int kWord = 66;  // words from one word of an entry to the next: 64 entries, 2 mod 32

  __host__ __device__ EncodeLayout(int ones, int pairs, int bits, int rows) {
    words = word_count(bits);
    steps = (words + 3) / 4;
    one_tiles = (ones + 15) / 16;
    pair_tiles = (pairs + 7) / 8;
    constants = (one_tiles + pair_tiles) * steps * 256;
    pair_constants = constants + one_tiles * 256;
    integers = pair_constants + pair_tiles * 512;
    row = (steps * 4 * kWord + 31) / 32 * 32 + 32 / rows;  // lanes along rows or along k: no bank conflicts
    size = integers + rows * row * 4;
  }
};

// Centred 2^exponent mod p, continued from the table's 2^(16 (digits - 1)) where that ends.
__device__ inline int32_t power_mod(const EncodeTask& task, int modulus, int exponent) {
  const int32_t p = task.moduli[modulus];
  const int have = min(exponent / 16, task.digits - 1);
  int64_t r = task.weights[int64_t{modulus} * task.digits + task.digits - 1 - have];
  if (exponent == 16 * have) return static_cast<int32_t>(r);
  for (int left = exponent - 16 * have; left > 0; left -= 16) r = r * (1 << min(left, 16)) % p;
  r %= p;
  return static_cast<int32_t>(r < -(p / 2) ? r + p : r >= p - p / 2 ? r - p : r);
}

// Centred K mod p, K of `words` words.
__device__ inline int32_t bias_mod(const EncodeTask& task, int modulus, int words) {
  const int32_t p = task.moduli[modulus];
  int32_t sum = power_mod(task, modulus, 32 * words - 1);
  for (int i = 1; i < words; ++i) sum += power_mod(task, modulus, 32 * i + 16);
  sum %= p;
  return sum < -(p / 2) ? sum + p : sum >= p - p / 2 ? sum - p : sum;
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

// How sums x of one-digit moduli are reduced.
//   kDirect:  x starts from M_0, a multiple of 256 p that keeps it at least 2^23: as an integer it then has, but for a
//             constant, the bits of the float f = M_0 + x. With Z = 1.5 2^23, q = rint(f / p + (Z - M_0 / p)) - Z is
//             one instruction and x - q p, in its low byte, another. Exact to 8 words: f < 2^23 + 4400 p, and the float
//             nearest to 1/p makes f / p wrong by less than 0.5 / p for every p there is (tests/test_residues.py);
//             x / p keeps 1 / (2 p) from a half, but p = 256, which has no rounding.
//   kFloat:   the same with M_0 taken off first, to 28 words: |x| < 2^22, so that x / p is off by less than 1 / (4 p).
//   kInteger: to 33 words (quick_reducer).
enum class Reduction { kDirect, kFloat, kInteger };
constexpr uint32_t kFloatSum = 0x4b400000;  // bits of Z

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
__device__ __forceinline__ int float_reduce(int minus_p, float inverse, int sum) {
  const float magic = __uint_as_float(kFloatSum);
  const float x = __fsub_rn(__int_as_float(sum), magic);
  return __float_as_int(__fmaf_rn(x, inverse, magic)) * minus_p + sum;
}

// Constants of one-digit modulus i, from its weights in shared memory.
template <Reduction kReduction>
__device__ inline int4 one_digit_constants(const EncodeTask& task, const EncodeLayout& layout, int i,
                                           const unsigned char* shared) {
  const int32_t p = task.moduli[i], bias = bias_mod(task, i, layout.words);
  if (kReduction == Reduction::kInteger) {
    const Reducer m = quick_reducer(p);
    return make_int4(p, m.factor, static_cast<int32_t>(m.offset), -bias);
  }
  const int inverse = __float_as_int(__frcp_rn(static_cast<float>(p)));
  if (kReduction == Reduction::kFloat) return make_int4(-p, inverse, 0, static_cast<int32_t>(kFloatSum) - bias);
  int32_t least = 0;
  for (int s = 0; s < layout.steps; ++s) {
    for (int t = 0; t < 4; ++t) {
      const int word = ((i / 16 * layout.steps + s) * 32 + i % 8 * 4 + t) * 2 + i % 16 / 8;
      const uint32_t packed = reinterpret_cast<const uint32_t*>(shared)[word];
      for (int b = 0; b < 32; b += 8) least += 255 * min(static_cast<int32_t>(static_cast<int8_t>(packed >> b)), 0);
    }
  }
  const DirectStart start = direct_start(p, bias, least);
  return make_int4(-p, inverse, __float_as_int(start.offset), start.sum);
}

template <Reduction kReduction>
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
  __syncthreads();
  int4* constants = reinterpret_cast<int4*>(shared + layout.constants);
  for (int i = threadIdx.x; i < layout.one_tiles * 16 + layout.pair_tiles * 8; i += kEncodeThreads) {
    if (i < layout.one_tiles * 16) {
      constants[i] = i < task.ones ? one_digit_constants<kReduction>(task, layout, i, shared) : make_int4(1, 0, 0, 0);
    } else {
      const int j = i - layout.one_tiles * 16;
      if (j >= task.pairs) continue;  // what comes of them is not stored
      const int modulus = task.ones + j;
      reinterpret_cast<PairConstants*>(shared + layout.pair_constants)[j] = PairConstants::make(
          task.moduli[modulus], task.lattice + int64_t{4} * j, bias_mod(task, modulus, layout.words));
    }
  }
}

__device__ inline uint32_t four_bytes(int a, int b, int c, int d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

// A value that the compiler keeps in a register of its own instead of computing or copying it again.
__device__ __forceinline__ int kept(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
