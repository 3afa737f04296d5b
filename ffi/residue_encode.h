// Residues of multiple doubles on a shared grid, as int8 channels (design 4.4; the definition is `_residues.encode`).
//
//   X = sum over limbs of round(limb 2^(w - scale)), ties away from zero, scale = exponent_i + shift_l
//   channel c of a modulus p <= 256: X mod p in [-p/2, p/2)
//   three channels of a two-digit modulus p: a, b, a + b with 129 (X + 128) mod p = 129 (a + 128) + 256 b
//
// Shapes: x [.., r, k] (side 0) or [.., k, r] (side 1); residues [G, .., r, kp], kp = k rounded up to 16, padded with 0.
// Method: X = sum_s digit_s 2^(15 (S-1-s)) with |digit_s| <= 1.5 2^14, which fit int16 without any carry; a residue is a
//   weighted sum of digits, two at a time in an int32 sum of int16 products, reduced mod p.
#pragma once

#include <cstdint>

#include "product_shape.h"

namespace jaxmd {

constexpr int kResidueDigit = 15;      // bits
constexpr int kMaxResidueDigits = 80;  // an even number, enough for w = 1027
constexpr int kResidueAlign = 64;      // elements; scratch is cut at multiples of it

struct ResidueEncodeTask {
  LimbPointers<const double> x;
  const int32_t* exponent;  // [batch, rows]
  const int32_t* shift;     // [batch, k]
  int8_t* out;              // [channels, batch, rows, padded]
  int64_t batch, rows, k, padded;
  bool transposed;     // side 1
  int bits;            // w
  int digit_pairs;     // S/2
  int small, pairs;    // moduli
  const int32_t* moduli;  // [small + pairs]
  // Weights 2^(15 (S-1-s)) mod p, two int16 a word: [small, digit_pairs] and, times 129 and cut at 8 bits,
  // [pairs, 2, digit_pairs].
  const int32_t* weights;
};

// Rows row ... row + count - 1 of one batch entry, inner indices first ... first + length - 1 (of `padded`). Element
// (i, l) is number (i - row) pitch + (l - first) of the scratch.
struct ResidueEncodeChunk {
  int64_t batch, row, count, first, length, pitch;
};

// Scratch of one thread for chunks of at most so many elements; `elements` of the chunk at hand, rounded up to
// kResidueAlign.
struct ResidueEncodeScratch {
  int64_t elements;
  double* limbs;    // [limb][element], in the order of residue_encode_digits.h
  int32_t* power;   // [element]
  int32_t* digits;  // elements * digit_pairs
  int64_t* sums;    // kResidueAlign * kMaxResidueDigits
};

using ResidueEncodeKernel = void(const ResidueEncodeTask& task, const ResidueEncodeChunk& chunk,
                                 const ResidueEncodeScratch& scratch);

}  // namespace jaxmd
