// The arguments of jaxmd_direct_matmul, checked once for both platforms.
#pragma once

#include "direct.h"
#include "product_args.h"

namespace jaxmd {

inline xla::ffi::Error direct_arguments(int64_t lhs_limbs, const xla::ffi::RemainingArgs& args,
                                        const xla::ffi::RemainingRets& rets, DirectTask* task) {
  constexpr const char* kName = "jaxmd_direct_matmul";
  Dimensions a, b, e, f, c;
  const int64_t rhs_limbs = static_cast<int64_t>(args.size()) - lhs_limbs - 2;
  JAXMD_CHECK(operand_limbs(kName, args, 0, lhs_limbs, &a, &task->a));
  JAXMD_CHECK(operand_limbs(kName, args, lhs_limbs, rhs_limbs, &b, &task->b));
  JAXMD_CHECK(product_shape(kName, a, b, &task->shape));
  JAXMD_CHECK((operand<xla::ffi::S32, int32_t>(args, lhs_limbs + rhs_limbs, &e, &task->e)));
  JAXMD_CHECK((operand<xla::ffi::S32, int32_t>(args, lhs_limbs + rhs_limbs + 1, &f, &task->f)));
  JAXMD_CHECK(result_limbs(kName, rets, &c, &task->c));
  const size_t batch_axes = a.size() - 2;
  JAXMD_CHECK(expect_shape(kName, "e", e, a, batch_axes, {task->shape.m}));
  JAXMD_CHECK(expect_shape(kName, "f", f, a, batch_axes, {task->shape.n}));
  JAXMD_CHECK(expect_shape(kName, "the result", c, a, batch_axes, {task->shape.m, task->shape.n}));
  if (task->shape.k >= int64_t{1} << 31) {
    return invalid(kName, "k is " + std::to_string(task->shape.k) + "; it must be below 2^31.");
  }
  return xla::ffi::Error::Success();
}

}  // namespace jaxmd
