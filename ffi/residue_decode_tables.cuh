// What a block of the residue decoder keeps in shared memory (residue_decode.cuh): the bytes of M_i as fragments, P and
// its inverse, the combinations of two-digit moduli; and the layout of each warp's own part.
//
// Bytes: M_i and P are moved up by whole bytes to the end of 4 kWords words, so that the first words of P say q. A
//        two-digit modulus has two rows, M_i for its low byte and 256 M_i mod P for its high one.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "arithmetic.h"
#include "product_shape.h"
#include "residue.cuh"

namespace jaxmd {
namespace JAXMD_ISA {

struct DecodeTask {
  const int8_t* small;      // [ones, entries]
  const int16_t* wide;      // [3 pairs, entries]
  const int32_t* row;       // [batch, m]
  const int32_t* column;    // [batch, n]
  const int32_t* moduli;    // [ones + pairs]
  const double* quotients;  // [ones + pairs], M_i / P
  const double* slices;     // [count, ones + pairs]
  const double* product;    // [count]
  const int32_t* combine;   // [pairs, 3]
  LimbPointers<double> out;
  int64_t entries, m, n;
  int ones, pairs, count, beta, low, bits;
  int bytes;  // of M_i in balanced bytes: decode_bytes
};

// Bytes that hold every |M_i| <= P/2 in balanced digits: P has at most `bits` bits, so 8 bytes >= bits + 1. Of coprime
// moduli one is even at most: P <= 256 255 253 251 ... 2^(16 pairs).
inline int decode_bytes(int ones, int pairs, int beta, int count) {
  double most = 16.0 * pairs + 1e-6;
  for (int i = 0; i < ones; ++i) most += i == 0 || i > 64 ? 8.0 : std::log2(257.0 - 2 * i);
  const int bits = static_cast<int>(most) + 1, listed = beta * count - 1;
  return ((bits < listed ? bits : listed) + 8) / 8;
}

constexpr int decode_threads(int words) { return words == 2 ? 128 : 256; }  // of a block, at most

constexpr int kDecodeTile = 32;            // entries of a warp at a time
constexpr int kDecodeStride = 33;          // int32s from one exchanged word to the next
constexpr int32_t kDecodeCarry = 1 << 16;  // makes the carries out of a part positive

// Shared memory of a block: the table in fragments, P, the combination of triples; then each warp's own.
//   kWords: words of an integer in each of four parts; a lane's columns of the product are the bytes of part t
//   kGroup: words of a part that are made at once
template <int kWords, int kGroup>
struct DecodeLayout {
  static constexpr int kAll = 4 * kWords;  // words of an integer
  static constexpr int kGroups = kWords / kGroup;
  // From one part to the next, odd: no bank conflicts. A part's last word is its carry.
  static constexpr int kPart = (kWords + 1) | 1;
  static constexpr int kExchange = (3 * kPart + kWords + 1) * kDecodeStride * 4;  // bytes
  static_assert(kWords % kGroup == 0);

  static constexpr int kMinus = kAll + 4;  // words from P to -P

  int one_steps, steps;         // k16 steps: of 16 one-digit moduli, then of 8 two-digit ones
  int raised;                   // bytes that M_i and P are moved up by
  int product, triples, warps;  // offsets
  int fragments, size;          // in a warp's part

  __host__ __device__ explicit DecodeLayout(const DecodeTask& task) {
    one_steps = (task.ones + 15) / 16;
    steps = one_steps + (task.pairs + 7) / 8;
    raised = 4 * kAll - task.bytes;
    product = steps * kWords * 256;
    triples = product + ((kMinus + kAll) * 4 + 8 + 15) / 16 * 16;
    warps = triples + (steps - one_steps) * 8 * 32;
    fragments = (kExchange + 15) / 16 * 16;
    size = fragments + (kGroups > 1 ? steps * 512 : 0);
  }
};

// Bytes of sum_j (scale slice(j) - multiple product(j)) 2^(beta j), the least significant first: emit(i, byte),
// i < bytes; balanced ones, or those of two's complement. All of them are below 2^53. Eight are asked for at a time, as
// they are far away.
template <bool kBalanced, class Slice, class Product, class Emit>
__device__ __forceinline__ void bytes_of_slices(Slice slice, Product product, double scale, double multiple,
                                                int count, int beta, int bytes, Emit emit) {
  int64_t rest = 0;
  int pending = 0, i = 0;
  const auto next = [&] {
    const int64_t byte = kBalanced ? static_cast<int8_t>(rest) : rest & 0xff;
    rest = (rest - byte) >> 8;
    emit(i++, static_cast<uint8_t>(byte));
  };
#pragma unroll 1
  for (int first = 0; first < count; first += 8) {
    double x[8], y[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int at = first + j < count ? first + j : count - 1;
      x[j] = slice(at), y[j] = product(at);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = sub_rn(mul_rn(scale, x[j]), mul_rn(multiple, y[j]));
#pragma unroll 1
    for (int j = 0; j < 8 && first + j < count; ++j) {
      rest += static_cast<int64_t>(x[j]) << pending;
      for (pending += beta; pending >= 8 && i < bytes; pending -= 8) next();
    }
  }
  while (i < bytes) next();
}

// Row r of the table: a one-digit modulus, or low (even r) and high byte of a two-digit one.
template <int kWords, int kGroup>
__device__ void fill_decode_tables(const DecodeTask& task, const DecodeLayout<kWords, kGroup>& layout,
                                   unsigned char* shared) {
  constexpr int kAll = 4 * kWords;
  using Layout = DecodeLayout<kWords, kGroup>;
  const int moduli = task.ones + task.pairs;
  for (int i = threadIdx.x; i < layout.steps * kWords * 64; i += blockDim.x) reinterpret_cast<uint32_t*>(shared)[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < task.ones + 2 * task.pairs; i += blockDim.x) {
    const int pair_row = i - task.ones, modulus = pair_row < 0 ? i : task.ones + pair_row / 2;
    const int k = pair_row < 0 ? i : 16 * layout.one_steps + pair_row;
    const bool high = pair_row >= 0 && pair_row % 2 == 1;
    const double scale = high ? 256 : 1, multiple = high ? rint(mul_rn(256, task.quotients[modulus])) : 0;
    const auto slice = [&](int j) { return task.slices[int64_t{j} * moduli + modulus]; };
    const auto product = [&](int j) { return high ? task.product[j] : 0.0; };
    const auto put = [&](int byte, uint8_t value) {
      const int part = (byte + layout.raised) / kAll, j = (byte + layout.raised) % kAll;
      const int lane = (2 * part + j % 2) * 4 + k % 16 / 4;
      shared[(((k / 16 * kWords + j / 4) * 32 + lane) * 2 + j / 2 % 2) * 4 + k % 4] = value;
    };
    bytes_of_slices<true>(slice, product, scale, multiple, task.count, task.beta, task.bytes, put);
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
  if (threadIdx.x == blockDim.x - 1) {
    uint32_t* words = reinterpret_cast<uint32_t*>(shared + layout.product);
    unsigned char* bytes = shared + layout.product;
    for (int i = 0; i < layout.raised; ++i) bytes[i] = 0;
    const auto slice = [&](int j) { return task.product[j]; };
    const auto none = [](int) { return 0.0; };
    bytes_of_slices<false>(slice, none, 1, 0, task.count, task.beta, task.bytes,
                           [&](int i, uint8_t byte) { bytes[layout.raised + i] = byte; });
    uint32_t carry = 1;
    double p = 0;
#pragma unroll 1
    for (int i = 0; i < kAll; ++i) {
      const uint32_t x = words[i];
      words[Layout::kMinus + i] = ~x + carry;
      carry = carry != 0 && x == 0 ? 1 : 0;
      p = add_rn(mul_rn(p, 0x1p-32), static_cast<double>(x));
    }
    const double inverse = div_rn(1.0, mul_rn(p, 0x1p32));  // of P in units of word kAll - 2
    memcpy(words + Layout::kMinus + kAll, &inverse, 8);
  }
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
