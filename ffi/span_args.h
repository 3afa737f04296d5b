// The arguments of jaxmd_exponent_span, checked once for both platforms.
#pragma once

#include "product_args.h"

namespace jaxmd {

inline xla::ffi::Error span_shape(Dimensions e, Dimensions f, Dimensions g, ProductShape* shape) {
  constexpr const char* kName = "jaxmd_exponent_span";
  JAXMD_CHECK(product_shape(kName, e, f, shape));
  return expect_shape(kName, "the result", g, e, e.size() - 2, {shape->m, shape->n});
}

}  // namespace jaxmd
