// Engine "direct" for more than four limbs: multiply-adds of long integers in a window below the largest term.
//
// Formula: a_il ≈ ±X·2^(e − B) with the integer X of B bits and e the exponent of the entry itself, |a_il| < 2^e, and
//   b_lj ≈ ±Y·2^(f − B) likewise. With T = max_l(e + f) over the terms of entry ij,
//   C_ij = 2^(T − B)·Σ_l ±⌊X·Y·2^(−B − s)⌋, s = T − e − f, rounded once to canonical limbs. B = 53L + 9, rounded up to
//   whole words.
// Bound: |C − AB| ≤ k·u^L·|A||B|/2 + u^L·|C|/2 for every k ≥ 1, u = 2^-53, normalized operands of any exponents:
//   entries    X errs by less than 2, and X ≥ 2^(B−1)(1 − u): together 2^(3−B) of each term, 2^-6·u^L·|A||B|;
//   terms      ⌊·⌋ drops less than 1 twice (the words of XY below B, the bits below the window); the largest term shows
//              |A||B| ≥ 2^(T−2)(1 − 2u), so 2·2^(T−B) is below 2^(3−B)(1 + 4u)·|A||B| ≤ 2^-5·u^L·|A||B|, k times;
//   rounding   canonical: u^L·|C|/2 for L ≥ 2.
//   There is no range to leave: exponents are integers, and the scaling exponents of rows and columns are not used.
// Exact: the sum itself, in two's complement with a word of headroom, k < 2^31.
// Cost: B²/2 bits of products, about (53L/w)²/2 + 2·53L/w multiplications of words of w bits; L³/3 two_sums of six
//   instructions would do the same (1200 for L = 8, 9000 for L = 16).
// Source: the short product of D. Knuth, The Art of Computer Programming 2 (3rd ed.), 4.3.1, truncated as in
//   T. Mulders, On short multiplications and divisions (AAECC 11, 2000); the window that follows the largest term is ours.
#pragma once

#include "product_shape.h"

namespace jaxmd {

// Words of `bits` bits that hold B for L limbs.
constexpr int window_words(int limbs, int bits) { return (53 * limbs + 9 + bits - 1) / bits; }

}  // namespace jaxmd
