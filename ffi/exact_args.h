// The arguments of jaxmd_exact_matmul, checked once for both platforms.
#pragma once

#include "product_args.h"

namespace jaxmd {

struct ExactJob {
  ProductShape shape;
  LimbPointers<const double> a, b;
  const int8_t* flag;
  LimbPointers<const double> given;  // what the results alias, where XLA grants it
  LimbPointers<double> c;
};

inline xla::ffi::Error exact_arguments(const char* who, int64_t lhs_limbs, int64_t rhs_limbs,
                                       const xla::ffi::RemainingArgs& args, const xla::ffi::RemainingRets& rets,
                                       ExactJob* job) {
  Dimensions a, b, flag, given, c;
  JAXMD_CHECK(operand_limbs(who, args, 0, lhs_limbs, &a, &job->a));
  JAXMD_CHECK(operand_limbs(who, args, lhs_limbs, rhs_limbs, &b, &job->b));
  JAXMD_CHECK(product_shape(who, a, b, &job->shape));
  JAXMD_CHECK((operand<xla::ffi::S8, int8_t>(args, lhs_limbs + rhs_limbs, &flag, &job->flag)));
  JAXMD_CHECK(result_limbs(who, rets, &c, &job->c));
  JAXMD_CHECK(operand_limbs(who, args, lhs_limbs + rhs_limbs + 1, job->c.count, &given, &job->given));
  const size_t batch_axes = a.size() - 2;
  const std::initializer_list<int64_t> last = {job->shape.m, job->shape.n};
  JAXMD_CHECK(expect_shape(who, "flag", flag, a, batch_axes, last));
  JAXMD_CHECK(expect_shape(who, "c", given, a, batch_axes, last));
  return expect_shape(who, "the result", c, a, batch_axes, last);
}

}  // namespace jaxmd
