// What the residue decoder (residue_decode.cuh) is told, and where a block keeps it in shared memory: the host's tables
// (jaxmd/_residue_tables.py, which says what they hold), word for word, then each warp's own words.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "arithmetic.h"
#include "product_shape.h"

namespace jaxmd {
namespace JAXMD_ISA {

struct DecodeTask {
  const int8_t* small;               // [ones, entries]
  const int16_t* wide;               // [3 pairs, entries]
  const int32_t *row, *column;       // [batch, m], [batch, n]
  const uint4* tables;               // DecodeLayout::tables bytes
  LimbPointers<double> out;
  uint32_t entries, rows, m, n;  // entries: rows of n; rows: those of all matrices of m
  uint32_t batch_of_row;             // floor(2^32 / m), at most 2^32 - 1
  int ones, pairs;                   // moduli of one and of two digits
  int bits, lowest;                  // w; the exponent of the lowest word with rows and columns of exponent 0
};

constexpr int kDecodeTile = 32;            // entries of a warp at a time
constexpr int32_t kDecodeCarry = 1 << 15;  // makes the carries out of a part positive

constexpr int decode_threads(int words) {
  return words == 3 || words == 5 || words == 7 ? 320 : words <= 4 ? 256 : words <= 14 ? 512 : 384;
}
constexpr int decode_blocks(int words) { return words <= 2 ? 3 : words <= 7 ? 2 : 1; }  // of a multiprocessor

// Shared memory of a block.
//   kWords: words of an integer in each of four parts; a lane's columns of the product are the bytes of part t
template <int kWords>
struct DecodeLayout {
  static constexpr int kAll = 4 * kWords;  // words of an integer
  // The most k32 steps, and one more than the fewest: moduli of one digit come in 16s, of two digits in 8s.
  static constexpr bool kPairs = kWords > 3;
  static constexpr int kSteps = kPairs ? (kWords + 3) / 2 : (kWords + 1) / 2;
  static constexpr int kOneSteps = kPairs ? 4 : 2 * kSteps;  // the most k16 steps of one digit
  // An entry's column: four rows for the carries out of the parts, then its words, the lowest first. The stride lets
  // lanes 4 g + t write part t of four entries at once without a bank conflict (with kWords = 4: with few).
  static constexpr int kStride = kWords % 2 == 0 ? 36 : 40;
  static constexpr int kSpare = 4;
  static constexpr int kColumns = (kSpare + kAll) * kStride * 4, kFragments = kPairs ? kSteps * 1024 : 0;
  static constexpr int kOwn = kColumns > kFragments ? kColumns : kFragments;  // bytes of a warp: one, then the other
  static constexpr int kMinus = kAll + 4;                                     // words from P to -P
  static constexpr int kProduct = ((kMinus + kAll + 2) * 4 + 15) / 16 * 16;   // bytes of P, -P and 1 / P

  int one_steps, pair_steps;  // k16 steps
  int steps;                  // k32 steps
  int product, combine, tables;

  __host__ __device__ DecodeLayout(int ones, int pairs) {
    one_steps = (ones + 15) / 16;
    pair_steps = (pairs + 7) / 8;
    const int needed = (one_steps + pair_steps + 1) / 2;
    steps = needed < kSteps - 1 ? kSteps - 1 : needed;
    product = steps * kWords * 512;
    combine = product + kProduct;
    tables = combine + pair_steps * 8 * 32;
  }
};

}  // namespace JAXMD_ISA
}  // namespace jaxmd
