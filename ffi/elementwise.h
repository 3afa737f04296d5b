// The elementwise kernels of one CPU instruction set, on elements [begin, end) of separate limb arrays.
#pragma once

#include <cstdint>

#include "isa.h"

namespace jaxmd {

using Limbs = const double* const*;   // [limb][element]
using LimbsOut = double* const*;

struct ElementwiseKernels {
  using Binary = void (*)(Limbs x, int nx, Limbs y, int ny, LimbsOut r, int limbs, int64_t begin, int64_t end);
  using Unary = void (*)(Limbs x, int n, LimbsOut r, int limbs, int64_t begin, int64_t end);
  Binary add, mul, div;
  Unary sqrt, renormalize;
  void (*scale)(Limbs x, int n, const int32_t* exponent, LimbsOut r, int64_t begin, int64_t end);
  void (*two_sum)(Limbs ab, LimbsOut r, int64_t begin, int64_t end);
  void (*two_prod)(Limbs ab, LimbsOut r, int64_t begin, int64_t end);
};

JAXMD_FOR_EACH_ISA(extern const ElementwiseKernels elementwise;)

}  // namespace jaxmd
