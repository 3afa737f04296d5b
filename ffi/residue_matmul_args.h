// The arguments of jaxmd_residue_matmul, checked once for both platforms.
#pragma once

#include "product_args.h"
#include "residue_matmul.h"

namespace jaxmd {

struct ResidueShape {
  int64_t moduli, small;   // `small` of one digit, with a channel each; the others have three
  int64_t batch, m, n, k;  // a [channels, batch, m, k], b [channels, batch, n, k], C [bytes, batch, m, n]

  int64_t channels() const { return 3 * moduli - 2 * small; }
  int64_t bytes() const { return 2 * moduli - small; }  // of an entry of C
};

inline xla::ffi::Error residue_shape(Dimensions a, Dimensions b, Dimensions moduli, Dimensions carries, Dimensions c,
                                     ResidueShape* shape) {
  constexpr const char* kName = "jaxmd_residue_matmul";
  const size_t r = a.size();
  bool fits = r >= 3 && b.size() == r && a[r - 1] == b[r - 1];
  for (size_t i = 0; fits && i + 2 < r; ++i) fits = a[i] == b[i];
  if (!fits) {
    return invalid(kName, "a has shape " + shape_text(a) + " and b has shape " + shape_text(b) +
                              "; wanted (channels, .., m, k) and (channels, .., n, k).");
  }
  if (moduli.size() != 1 || carries.size() != 2 || carries[1] != 2 || carries[0] > moduli[0]) {
    return invalid(kName, "moduli have shape " + shape_text(moduli) + " and carries " + shape_text(carries) +
                              "; wanted (N,) and (N2, 2), N2 <= N.");
  }
  *shape = {moduli[0], moduli[0] - carries[0], 1, a[r - 2], b[r - 2], a[r - 1]};
  for (size_t i = 1; i + 2 < r; ++i) shape->batch *= a[i];
  if (shape->k % kResidueStep != 0) {
    return invalid(kName, "k is " + std::to_string(shape->k) + "; wanted a multiple of 16.");
  }
  if (shape->channels() != a[0]) {
    return invalid(kName, std::to_string(a[0]) + " channels for " + std::to_string(shape->small) +
                              " moduli of one digit and " + std::to_string(carries[0]) + " of two; wanted " +
                              std::to_string(shape->channels()) + ".");
  }
  bool same = c.size() == r && c[0] == shape->bytes() && c[r - 2] == shape->m && c[r - 1] == shape->n;
  for (size_t i = 1; same && i + 2 < r; ++i) same = c[i] == a[i];
  if (!same) {
    return invalid(kName, "the result has shape " + shape_text(c) + "; wanted (" + std::to_string(shape->bytes()) +
                              ", .., " + std::to_string(shape->m) + ", " + std::to_string(shape->n) +
                              ") with the batch axes of a.");
  }
  return xla::ffi::Error::Success();
}

}  // namespace jaxmd
