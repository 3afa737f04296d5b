// Grids of the operands of a product, and 7-bit magnitudes of their first terms, on the CPU.
//
//   exponent_i = max over l of e(x_il)       out_il = min(127, floor(2^7 |x_il| / 2^exponent_i))     l < terms
//
// with e = `settled_exponents` of jaxmd/_slices.py, and exponents and magnitudes as `shared_exponent` and `magnitudes`
// (jaxmd/_magnitudes.py) have them: 0 where a row has only zeros; kUnsettled where a limb is not settled.
// Exact: |x| times a power of two, both far from the ends of the range, is exact.
#pragma once

#include <cstdint>

#include "product_shape.h"

namespace jaxmd {

struct CertificateSide {
  LimbPointers<const double> x;  // [batch, rows, k], or [batch, k, rows] where transposed
  int64_t rows, k, terms, kept;  // magnitudes [batch, rows, kept], zeros from `terms` on
  int32_t* exponent;             // [batch, rows]
  int8_t* magnitude;
};

constexpr int64_t kCertificateSpan = 64;  // columns a call takes of a transposed operand

struct CertificateKernels {
  // Rows first … last − 1 of all batches; whether all are settled.
  bool (*rows)(const CertificateSide& side, int64_t first, int64_t last);
  // Spans of kCertificateSpan columns of all batches.
  bool (*columns)(const CertificateSide& side, int64_t first, int64_t last);
};

}  // namespace jaxmd
