// What a block of the residue decoder keeps in shared memory (residue_decode.cuh): the bytes of M_i as fragments, P and
// its inverse, the combinations of two-digit moduli; and the layout of each warp's own part.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "arithmetic.h"
#include "product_shape.h"
#include "residue.cuh"

namespace jaxmd {
namespace JAXMD_ISA {

struct DecodeTask {
  const int8_t* small;     // [ones, entries]
  const int16_t* wide;     // [3 pairs, entries]
  const int32_t* row;      // [batch, m]
  const int32_t* column;   // [batch, n]
  const int32_t* moduli;   // [ones + pairs]
  const double* slices;    // [count, ones + pairs]
  const double* product;   // [count]
  const int32_t* combine;  // [pairs, 3]
  LimbPointers<double> out;
  int64_t entries, m, n;
  int ones, pairs, count, beta, low, bits;
  bool aligned;  // every channel starts on the lanes' loads
};

// Shared memory of a block: the table in fragments, P, the combination of triples; then each warp's own.
template <int kHalves, int kTiles, int kLimbs>
struct DecodeLayout {
  static constexpr int kEntries = 16 * kHalves;             // of a warp
  static constexpr int kStride = kEntries + 8;              // int32s from one digit to the next: 8 mod 32
  static constexpr int kDigits = 4 * kTiles * kStride * 4;  // bytes of a group's digits
  static_assert(kStride % 32 == 8 && kLimbs >= 0);

  int one_steps, steps;               // k16 steps: of 16 one-digit moduli, then of 8 two-digit ones
  int tiles, words;                   // of 8 bytes; of 32 bits, two a tile
  int product, triples, warps, size;  // offsets; bytes of a warp
  int fragments, integers;            // offsets in a warp's part

  __host__ __device__ explicit DecodeLayout(const DecodeTask& task) {
    one_steps = (task.ones + 15) / 16;
    steps = one_steps + (task.pairs + 7) / 8;
    tiles = (task.beta * task.count + (task.pairs > 0 ? 8 : 0) + 63) / 64;
    words = 2 * tiles;
    product = steps * tiles * 128;
    triples = product + (words * 4 + 8 + 15) / 16 * 16;
    warps = triples + (steps - one_steps) * 8 * 32;
    fragments = kDigits;
    integers = fragments + (kLimbs > 0 ? 0 : steps * kHalves * 256);
    size = integers + (kLimbs > 0 ? 0 : words * kStride * 4);
  }

  // Entry e of a warp and the place of its digits: lanes of a fragment write, and lanes that own entries read, without
  // bank conflicts.
  static __host__ __device__ int place(int e) { return e % (2 * kHalves) * 8 + e / (2 * kHalves); }
  static __host__ __device__ int entry(int place) { return place % 8 * (2 * kHalves) + place / 8; }
  // First digit, base 2^16, that counts for q.
  static __host__ __device__ int leading(const DecodeTask& task) {
    const int d = (task.beta * task.count - task.count - 40) / 16;
    return d > 0 ? d : 0;
  }
};

// Bytes of sum_j slice_j 2^(beta j), the least significant first: emit(i, byte), i < bytes; balanced ones, or those of
// two's complement.
template <bool kBalanced, class Emit>
__device__ void bytes_of_slices(const double* slice, int64_t stride, int count, int beta, int bytes, Emit emit) {
  int64_t rest = 0;
  int next = 0;
  for (int i = 0; i < bytes; ++i) {
    for (; next < count && beta * next < 8 * i + 8; ++next) {
      rest += static_cast<int64_t>(slice[next * stride]) << (beta * next - 8 * i);
    }
    const int64_t byte = kBalanced ? static_cast<int8_t>(rest) : rest & 0xff;
    rest = (rest - byte) >> 8;
    emit(i, static_cast<uint8_t>(byte));
  }
}

// Row r of the table: a one-digit modulus, or low (even r) and high byte of a two-digit one.
template <class Layout>
__device__ void fill_decode_tables(const DecodeTask& task, const Layout& layout, unsigned char* shared) {
  const int moduli = task.ones + task.pairs, bytes = 8 * layout.tiles;
  for (int i = threadIdx.x; i < layout.steps * layout.tiles * 32; i += blockDim.x) {
    reinterpret_cast<uint32_t*>(shared)[i] = 0;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < moduli; i += blockDim.x) {
    const auto put = [&](int k, int column, uint8_t byte) {  // k: row of the table, 16 a step
      if (column >= bytes) return;
      const int lane = column % 8 * 4 + k % 16 / 4;
      shared[((k / 16 * layout.tiles + column / 8) * 32 + lane) * 4 + k % 4] = byte;
    };
    bytes_of_slices<true>(task.slices + i, moduli, task.count, task.beta, bytes, [&](int column, uint8_t byte) {
      if (i < task.ones) return put(i, column, byte);
      const int k = 16 * layout.one_steps + 2 * (i - task.ones);
      put(k, column, byte);
      put(k + 1, column + 1, byte);
    });
  }
  for (int i = threadIdx.x; i < (layout.steps - layout.one_steps) * 8; i += blockDim.x) {
    const int modulus = task.ones + i;
    const bool inside = i < task.pairs;
    const Reducer m = reducer(inside ? task.moduli[modulus] : 40000);
    int4* to = reinterpret_cast<int4*>(shared + layout.triples) + 2 * i;
    const int32_t* c = task.combine + 3 * int64_t{i};
    to[0] = make_int4(m.modulus, m.factor, 0, 0);
    to[1] = inside ? make_int4(c[0], c[1], c[2], 0) : make_int4(0, 0, 0, 0);
  }
  if (threadIdx.x == 0) {
    unsigned char* p_bytes = shared + layout.product;
    bytes_of_slices<false>(task.product, 1, task.count, task.beta, 4 * layout.words,
                           [&](int i, uint8_t byte) { p_bytes[i] = byte; });
    double p = 0;
    for (int j = task.count - 1; j >= 0; --j) {
      const int e = task.beta * j - 16 * Layout::leading(task);
      if (e > -1000) p = add_rn(p, mul_rn(task.product[j], power_of_two(e)));
    }
    const double inverse = div_rn(1.0, p);
    memcpy(shared + layout.product + layout.words * 4, &inverse, 8);
  }
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
