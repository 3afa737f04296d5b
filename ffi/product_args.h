// Decoding and checking the buffers of a matrix product, with the errors of style.md.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "product_shape.h"
#include "xla/ffi/api/ffi.h"

namespace jaxmd {

using Dimensions = xla::ffi::AnyBuffer::Dimensions;

// x / y, rounded up.
inline int64_t quotient(int64_t x, int64_t y) { return (x + y - 1) / y; }

inline std::string shape_text(Dimensions d) {
  std::string text = "(";
  for (size_t i = 0; i < d.size(); ++i) text += (i != 0 ? ", " : "") + std::to_string(d[i]);
  return text + (d.size() == 1 ? ",)" : ")");
}

inline bool same_shape(Dimensions a, Dimensions b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) return false;
  }
  return true;
}

inline xla::ffi::Error invalid(const char* who, const std::string& what) {
  return xla::ffi::Error(xla::ffi::ErrorCode::kInvalidArgument, std::string(who) + ": " + what);
}

// The shape of a·b, checked.
inline xla::ffi::Error product_shape(const char* who, Dimensions a, Dimensions b, ProductShape* shape) {
  const size_t r = a.size();
  bool fits = r >= 2 && b.size() == r && a[r - 1] == b[r - 2];
  *shape = {1, 0, 0, 0};
  for (size_t i = 0; fits && i + 2 < r; ++i) {
    fits = a[i] == b[i];
    shape->batch *= a[i];
  }
  if (!fits) {
    return invalid(who, "a has shape " + shape_text(a) + " and b has shape " + shape_text(b) +
                            "; leading and inner dimensions must agree.");
  }
  shape->m = a[r - 2];
  shape->k = a[r - 1];
  shape->n = b[r - 1];
  return xla::ffi::Error::Success();
}

// `d` must be the dimensions of `like` with the axes from `keep` on replaced by `last`.
inline xla::ffi::Error expect_shape(const char* who, const char* what, Dimensions d, Dimensions like, size_t keep,
                                    std::initializer_list<int64_t> last) {
  bool fits = d.size() == keep + last.size();
  for (size_t i = 0; fits && i < d.size(); ++i) fits = d[i] == (i < keep ? like[i] : last.begin()[i - keep]);
  if (fits) return xla::ffi::Error::Success();
  std::string wanted = "(";
  for (size_t i = 0; i < keep; ++i) wanted += std::to_string(like[i]) + ", ";
  for (int64_t x : last) wanted += std::to_string(x) + ", ";
  return invalid(who, std::string(what) + " has shape " + shape_text(d) + "; wanted " + wanted + ").");
}

// Arguments first … first + count − 1 as float64 limbs of one shape.
inline xla::ffi::Error operand_limbs(const char* who, const xla::ffi::RemainingArgs& args, int64_t first, int64_t count,
                                     Dimensions* shape, LimbPointers<const double>* limbs) {
  if (count < 1 || count > kMaxProductLimbs || first + count > static_cast<int64_t>(args.size())) {
    return invalid(who, std::to_string(count) + " limbs of " + std::to_string(args.size()) +
                            " arguments; wanted 1 to " + std::to_string(kMaxProductLimbs) + " limbs an operand.");
  }
  limbs->count = static_cast<int>(count);
  for (int64_t i = 0; i < count; ++i) {
    const auto buffer = args.get<xla::ffi::Buffer<xla::ffi::F64>>(first + i);
    if (buffer.has_error()) return buffer.error();
    if (i == 0) *shape = buffer->dimensions();
    if (!same_shape(*shape, buffer->dimensions())) {
      return invalid(who, "limbs of one operand have shapes " + shape_text(*shape) + " and " +
                              shape_text(buffer->dimensions()) + "; they must be equal.");
    }
    limbs->limb[i] = buffer->typed_data();
  }
  return xla::ffi::Error::Success();
}

// All results as float64 limbs of one shape.
inline xla::ffi::Error result_limbs(const char* who, const xla::ffi::RemainingRets& rets, Dimensions* shape,
                                    LimbPointers<double>* limbs) {
  const int64_t count = rets.size();
  if (count < 1 || count > kMaxProductLimbs) {
    return invalid(who, std::to_string(count) + " results; wanted 1 to " + std::to_string(kMaxProductLimbs) + ".");
  }
  limbs->count = static_cast<int>(count);
  for (int64_t i = 0; i < count; ++i) {
    auto buffer = rets.get<xla::ffi::Buffer<xla::ffi::F64>>(i);
    if (buffer.has_error()) return buffer.error();
    if (i == 0) *shape = (*buffer)->dimensions();
    if (!same_shape(*shape, (*buffer)->dimensions())) return invalid(who, "results differ in shape.");
    limbs->limb[i] = (*buffer)->typed_data();
  }
  return xla::ffi::Error::Success();
}

// The buffer at `index`, of element type `dtype`, without a shape.
template <xla::ffi::DataType dtype, class T>
inline xla::ffi::Error operand(const xla::ffi::RemainingArgs& args, int64_t index, Dimensions* shape, const T** data) {
  const auto buffer = args.get<xla::ffi::Buffer<dtype>>(index);
  if (buffer.has_error()) return buffer.error();
  *shape = buffer->dimensions();
  *data = buffer->typed_data();
  return xla::ffi::Error::Success();
}

// Leaves the handler with the error, if there is one.
#define JAXMD_CHECK(expression)                                                          \
  do {                                                                                   \
    if (xla::ffi::Error error_ = (expression); error_.failure()) return error_;          \
  } while (false)

}  // namespace jaxmd
