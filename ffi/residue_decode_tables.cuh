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
  const int8_t* residues;            // [bytes, entries]
  const int32_t *row, *column;       // [batch, m], [batch, n]
  const uint4* tables;               // DecodeLayout::tables bytes
  LimbPointers<double> out;
  uint32_t entries, rows, m, n;  // entries: rows of n; rows: those of all matrices of m
  uint32_t batch_of_row;             // floor(2^32 / m), at most 2^32 - 1
  int bytes;                         // of an entry's residues
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
  // The most k32 steps, and one more than the fewest.
  static constexpr bool kAhead = kWords <= 3;  // all residues are asked for a tile ahead
  static constexpr int kSteps = kAhead ? (kWords + 1) / 2 : (kWords + 3) / 2;
  // An entry's column: four rows for the carries out of the parts, then its words, the lowest first. The stride lets
  // lanes 4 g + t write part t of four entries at once without a bank conflict (with kWords = 4: with few).
  static constexpr int kStride = kWords % 2 == 0 ? 36 : 40;
  static constexpr int kSpare = 4;
  static constexpr int kColumns = (kSpare + kAll) * kStride * 4, kFragments = kAhead ? 0 : kSteps * 1024;
  static constexpr int kOwn = kColumns > kFragments ? kColumns : kFragments;  // bytes of a warp: one, then the other
  static constexpr int kMinus = kAll + 4;                                     // words from P to -P
  static constexpr int kProduct = ((kMinus + kAll + 2) * 4 + 15) / 16 * 16;   // bytes of P, -P and 1 / P

  int halves;  // k16 steps
  int steps;   // k32 steps
  int product, tables;

  __host__ __device__ explicit DecodeLayout(int bytes) {
    halves = (bytes + 15) / 16;
    const int needed = (halves + 1) / 2;
    steps = needed < kSteps - 1 ? kSteps - 1 : needed;
    product = steps * kWords * 512;
    tables = product + kProduct;
  }
};

}  // namespace JAXMD_ISA
}  // namespace jaxmd
