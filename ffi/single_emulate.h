// The tensor cores' part of single_matmul.h in integers: one row of A by a panel of columns of B.
#pragma once

#include <cstdint>

#include "single_matmul.h"

namespace jaxmd {

constexpr int kSingleColumns = 16;  // of a panel

// hi, lo and rest as significands, each 2^(exponent - 10); [k], of a panel [k][kSingleColumns]. A zero has kSingleZero.
struct SinglePieces {
  int32_t *significand[3], *exponent[3];
};
constexpr int32_t kSingleZero = -100000;

// Sums of `chunks` chunks.
using SingleEmulator = void(const SinglePieces& a, const SinglePieces& b, int64_t chunks, SingleFormat format,
                            bool is_short, float* sums);

}  // namespace jaxmd
