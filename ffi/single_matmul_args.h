// The arguments of jaxmd_single_matmul, checked once for both platforms.
#pragma once

#include <string>

#include "product_args.h"
#include "single_matmul.h"

namespace jaxmd {

// a [.., m, k], b [.., k, n], bits of the largest magnitude of each row of a and column of b, c [.., m, n]
inline xla::ffi::Error single_shape(Dimensions a, Dimensions b, Dimensions row, Dimensions column, Dimensions c,
                                    int64_t format, ProductShape* shape) {
  constexpr const char* kName = "jaxmd_single_matmul";
  JAXMD_CHECK(product_shape(kName, a, b, shape));
  const size_t lead = a.size() - 2;
  JAXMD_CHECK(expect_shape(kName, "the array of row maxima", row, a, lead, {shape->m}));
  JAXMD_CHECK(expect_shape(kName, "the array of column maxima", column, a, lead, {shape->n}));
  JAXMD_CHECK(expect_shape(kName, "the result", c, a, lead, {shape->m, shape->n}));
  if (format == 0 || format == 1) return xla::ffi::Error::Success();
  return invalid(kName, "format is " + std::to_string(format) + "; wanted 0 (f16) or 1 (tf32).");
}

}  // namespace jaxmd
