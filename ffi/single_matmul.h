// Single-precision products from half-precision tensor cores: the arithmetic, shared by CPU and CUDA.
//
//   x 2^s = hi + lo + rest,   2^14 <= max |x 2^s| < 2^15   s: one shift for each row of A and column of B
//   C = 2^-(s_i + s_j) sum over chunks of ( lo hi + hi lo + hi hi )                                       long sums
//   C = 2^-(s_i + s_j) sum over chunks of ( rest hi + hi rest + lo lo + lo hi + hi lo, then hi hi )       short sums
//
// f16:   hi = f16(x 2^s), lo = f16(x 2^s - hi), rest alike, to nearest even; instructions of 16 terms.
// tf32:  hi = tf32(x 2^s), lo = tf32(x 2^s - hi), rest alike, to nearest, ties away from zero; instructions of 8 terms.
// A residual of f16 needs no scale of its own: the shift puts the largest entries of a row near the top of f16's
// range, so that residuals keep 11 bits in entries down to 2^-15 of the largest, and are right to 2^-39 of the largest
// below. Then all three products have one unit and one accumulator.
// A chunk is 64 terms in long sums of f16, else 32: the accumulator of the tensor core, which truncates, starts at 0,
// takes lo hi and hi lo of the chunk's first instruction, then of the others, while it is small, and then hi hi of all.
// Chunks are added in single precision, rounded to nearest, k ascending.
// In a sum of few terms, or of few that matter, two pieces of 11 bits for 24 and the truncation inside a chunk are what
// one sees. Short sums have a third piece, which makes the split exact; and their accumulator starts at 0 again for
// each hi hi, is added with TwoSum, and what that leaves, and the small products of each chunk, are summed apart. The
// other products of pieces are below 2^-32 of the whole.
// tf32 takes the terms of 16 in the order 0 1 4 5 8 9 12 13, 2 3 6 7 10 11 14 15; f16 in any order, by its nature.
#pragma once

#include <cstddef>
#include <cstdint>

namespace jaxmd {

enum class SingleFormat : int64_t { f16 = 0, tf32 = 1 };

constexpr int kSingleTerms = 16;        // that are reordered together
constexpr int64_t kSingleShort = 1024;  // sums below it are short
constexpr int kSingleNonfinite = 255;   // biased exponent

constexpr int single_depth(SingleFormat format) { return format == SingleFormat::f16 ? 16 : 8; }
constexpr int single_chunk(SingleFormat format, bool is_short) {
  return format == SingleFormat::f16 && !is_short ? 64 : 32;
}

// The shift of a row or column whose largest magnitude has these bits: 2^14 <= max < 2^15 after it, less where the
// power of two would leave the range (max < 2^-112). Rows with Inf or NaN get a shift too; their results are replaced.
#ifdef __CUDACC__
__host__ __device__
#endif
inline int single_shift(int32_t max_bits) {
  const int shift = 141 - (max_bits >> 23);
  return shift < 126 ? shift : 126;
}

}  // namespace jaxmd
