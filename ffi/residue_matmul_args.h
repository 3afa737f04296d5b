// The arguments of jaxmd_residue_matmul, checked once for both platforms.
#pragma once

#include <tuple>

#include "product_args.h"
#include "residue_matmul.h"

namespace jaxmd {

struct ResidueShape {
  int64_t channels, small;  // the first `small` channels have one-byte results, the others two bytes
  int64_t batch, m, n, k;   // a [channels, batch, m, k], b [channels, batch, n, k], C [channels, batch, m, n]
};

inline xla::ffi::Error residue_shape(Dimensions a, Dimensions b, Dimensions moduli, Dimensions narrow, Dimensions wide,
                                     int64_t small, ResidueShape* shape) {
  constexpr const char* kName = "jaxmd_residue_matmul";
  const size_t r = a.size();
  bool fits = r >= 3 && b.size() == r && a[r - 1] == b[r - 1];
  for (size_t i = 0; fits && i + 2 < r; ++i) fits = a[i] == b[i];
  if (!fits) {
    return invalid(kName, "a has shape " + shape_text(a) + " and b has shape " + shape_text(b) +
                              "; wanted (channels, .., m, k) and (channels, .., n, k).");
  }
  *shape = {a[0], small, 1, a[r - 2], b[r - 2], a[r - 1]};
  for (size_t i = 1; i + 2 < r; ++i) shape->batch *= a[i];
  if (shape->k % kResidueStep != 0) {
    return invalid(kName, "k is " + std::to_string(shape->k) + "; wanted a multiple of 16.");
  }
  if (small < 0 || small > shape->channels) {
    return invalid(kName, std::to_string(small) + " one-byte channels of " + std::to_string(shape->channels) +
                              "; wanted no more than there are.");
  }
  if (moduli.size() != 1 || moduli[0] != shape->channels) {
    return invalid(kName, "the moduli have shape " + shape_text(moduli) + "; wanted (" +
                              std::to_string(shape->channels) + ",).");
  }
  for (const auto& [what, d, count] : {std::tuple{"the one-byte result", narrow, small},
                                       std::tuple{"the two-byte result", wide, shape->channels - small}}) {
    bool same = d.size() == r && d[0] == count && d[r - 2] == shape->m && d[r - 1] == shape->n;
    for (size_t i = 1; same && i + 2 < r; ++i) same = d[i] == a[i];
    if (!same) {
      return invalid(kName, std::string(what) + " has shape " + shape_text(d) + "; wanted (" + std::to_string(count) +
                                ", .., " + std::to_string(shape->m) + ", " + std::to_string(shape->n) +
                                ") with the batch axes of a.");
    }
  }
  return xla::ffi::Error::Success();
}

}  // namespace jaxmd
