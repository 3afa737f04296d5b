// Products from their residues (design 4.4; the definition is `_residues.decode`).
//
//   r_i       = centred residue mod p_i, in one byte, or in two: low + 256 high
//   q         = round(sum_i r_i quotient_i)
//   S_j       = sum_i r_i slice_ji - q product_j                exact integers
//   C         = 2^(row + column + raise) sum_j S_j weight_j, rounded canonically, then scaled
//   weight_j  = 2^(low + beta j - 2w - raise), so that no term leaves the range of float64
//
// Shapes: residues [n1 + 2 n2, .., m, n], row [.., m], column [.., n], C [.., m, n].
#pragma once

#include <cstdint>

#include "product_shape.h"

namespace jaxmd {

constexpr int kResidueBlock = 512;      // elements of a kernel call
constexpr int kResidueDecodeStep = 64;  // elements put together at a time
constexpr int kMaxResidueSlices = 128;

struct ResidueDecodeTask {
  const int8_t* residues;
  const int32_t *row, *column;
  LimbPointers<double> out;
  int64_t batch, m, n;
  int raise;
  int ones, pairs;         // moduli of one and of two digits
  int slices;              // c
  const double* table;     // [ones + pairs, 1 + c]: the quotient and the slices of a modulus
  const double* product;   // [c]
  const double* weight;    // [c]
};

// Elements begin ... end - 1 of [batch, m, n], at most kResidueBlock of them. Scratch: residue_decode_scratch doubles.
using ResidueDecodeKernel = void(const ResidueDecodeTask& task, int64_t begin, int64_t end, double* scratch);

inline int64_t residue_decode_scratch(const ResidueDecodeTask& task) {
  const int64_t moduli = task.ones + task.pairs;
  return (moduli + 1 + task.slices + task.out.count) * kResidueDecodeStep + moduli * kResidueBlock / 4;
}

}  // namespace jaxmd
