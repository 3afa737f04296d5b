// x 2^e for a pack of elements, each with its own exponent.
#pragma once

#include "arithmetic.h"
#include "simd.h"

namespace jaxmd {
namespace JAXMD_ISA {

// r = 2^exponent[lane] x[0..n), canonical; answers the lanes that are done, the others need scale_careful.
template <class V>
JAXMD_INLINE MaskOf<V> scale_lanes(V* x, int n, const int32_t* exponent, V* r) {
  int32_t e[Value<V>::lanes], minus[Value<V>::lanes];
  bool moderate = true;
  for (int l = 0; l < Value<V>::lanes; ++l) {
    e[l] = exponent[l];
    moderate = moderate && e[l] >= -1000 && e[l] <= 1000;
    minus[l] = moderate ? -e[l] : 0;
  }
  const MaskOf<V> ok = scale_fast(x, n, load_power(e, V{}), load_power(minus, V{}), r);
  return moderate ? ok : less(broadcast<V>(0.0), broadcast<V>(0.0));
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
