// What the kernels of a matrix product are given: a [.., m, k], b [.., k, n], leading axes flattened into one.
#pragma once

#include <cstdint>

namespace jaxmd {

constexpr int kMaxProductLimbs = 17;  // 16, and one more where a caller keeps a guard limb

struct ProductShape {
  int64_t batch, m, k, n;
};

// The limbs of one operand or result. A struct of pointers, so that a kernel takes it by value.
template <class T>
struct LimbPointers {
  T* limb[kMaxProductLimbs];
  int count;
};

}  // namespace jaxmd
