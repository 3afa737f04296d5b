// Chains of fused steps, d = ρ(c + Σ_l a_l b_l) with L products a step, as tensor cores make them: bits in, bits out.
//
// The formula and its words are those of jaxmd/tensorcore/_fused.py, which is the same in JAX. Here
//   |m_a m_b| 2^(F - f)   a product's magnitude with F fraction bits, f those of the two formats together: 27 bits
//   >> (e_max - e)        the cut;  magnitudes of all terms and those of the negative ones add up in two uint32
#pragma once

#include <cstdint>

namespace jaxmd {

// A floating-point format: `specials` is 0 for none, 1 for NaN alone (all ones), 2 for Inf and NaN.
struct StepFormat {
  int exponent_bits, mantissa_bits, specials, unused;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int min_exponent() const { return 1 - bias(); }
};

// How a step rounds: to `fraction_bits` of float32 (half = false, toward zero) or float16 (nearest even).
struct StepRule {
  StepFormat a, b;
  int length;                        // L
  int fraction_bits, zero_exponent;  // F and what e_max is at least
  int output_bits;
  bool half;
};

// One case, row-major words: a [m, k], b [k, n], c and d [m, n]; k a multiple of L.
struct StepTask {
  const uint32_t *a, *b, *c;
  uint32_t* d;
  int64_t m, k, n;
};

// Lanes that columns are padded to, whatever the instruction set, and columns of a kernel call.
constexpr int64_t kStepLanes = 16, kStepColumns = 64;

constexpr int64_t step_padded(int64_t n) { return (n + kStepLanes - 1) / kStepLanes * kStepLanes; }

// int32 entries of scratch of a kernel call: the parts of b's columns, and of one row of a.
constexpr int64_t step_scratch(int64_t k, int64_t columns) { return 4 * (k * step_padded(columns) + step_padded(k)); }

// Outputs [row, row + rows) x [column, column + columns) of one case.
struct StepPanel {
  int64_t row, rows, column, columns;
};
using StepKernel = void(const StepRule& rule, const StepTask& task, const StepPanel& panel, int32_t* scratch);

}  // namespace jaxmd
