// jaxmd_tensorcore_steps on the CPU: checks, and panels of cases on XLA's thread pool. The kernel is in
// tensorcore_steps_simd.cc, the formula in tensorcore_steps.h.
#include <algorithm>
#include <vector>

#include "isa.h"
#include "product_args.h"
#include "tensorcore_steps.h"
#include "threads.h"

namespace jaxmd {

JAXMD_FOR_EACH_ISA(extern StepKernel step_panel;)

namespace {

namespace ffi = xla::ffi;

constexpr const char* kWho = "jaxmd_tensorcore_steps";

// Four numbers of a format in one attribute: exponent bits, mantissa bits, specials, unused bits, eight bits each.
StepFormat unpack(int64_t packed) {
  const auto part = [packed](int i) { return static_cast<int>(packed >> (8 * i) & 255); };
  return {part(0), part(1), part(2), part(3)};
}

ffi::Error steps(ffi::ThreadPool pool, ffi::Buffer<ffi::U32> a, ffi::Buffer<ffi::U32> b, ffi::Buffer<ffi::U32> c,
                 ffi::Result<ffi::Buffer<ffi::U32>> d, int64_t format_a, int64_t format_b, int64_t length,
                 int64_t fraction_bits, int64_t zero_exponent, int64_t output_bits, int64_t half) {
  ProductShape s;
  JAXMD_CHECK(product_shape(kWho, a.dimensions(), b.dimensions(), &s));
  const Dimensions like = a.dimensions();
  JAXMD_CHECK(expect_shape(kWho, "c", c.dimensions(), like, like.size() - 2, {s.m, s.n}));
  JAXMD_CHECK(expect_shape(kWho, "d", d->dimensions(), like, like.size() - 2, {s.m, s.n}));
  const StepRule rule{unpack(format_a),
                      unpack(format_b),
                      static_cast<int>(length),
                      static_cast<int>(fraction_bits),
                      static_cast<int>(zero_exponent),
                      static_cast<int>(output_bits),
                      half != 0};
  if (length < 1 || s.k % length != 0 || fraction_bits < rule.a.mantissa_bits + rule.b.mantissa_bits) {
    return invalid(kWho, "k = " + std::to_string(s.k) + ", L = " + std::to_string(length) + " and F = " +
                             std::to_string(fraction_bits) + "; wanted k a multiple of L and F no less than a product's bits.");
  }
  if (s.batch * s.m * s.n == 0) return ffi::Error::Success();
  const int64_t columns = std::min(s.n, kStepColumns), cost = columns * (s.k + 8);  // of a row, in terms
  const int64_t rows = std::min(s.m, std::max<int64_t>(32, 20000 / cost));
  const int64_t down = (s.m + rows - 1) / rows, across = (s.n + columns - 1) / columns;
  const int64_t grain = std::max<int64_t>(1, 20000 / (cost * rows));
  StepKernel* const kernel = JAXMD_CHOSEN(step_panel);
  const uint32_t *const a_data = a.typed_data(), *const b_data = b.typed_data(), *const c_data = c.typed_data();
  uint32_t* const d_data = d->typed_data();
  parallel_for(pool, s.batch * down * across, grain, [=](int64_t begin, int64_t end) {
    std::vector<int32_t> scratch(step_scratch(s.k, columns));
    for (int64_t t = begin; t < end; ++t) {
      const int64_t batch = t / (down * across), row = t / across % down * rows, column = t % across * columns;
      const StepTask task{a_data + batch * s.m * s.k, b_data + batch * s.k * s.n, c_data + batch * s.m * s.n,
                          d_data + batch * s.m * s.n, s.m, s.k, s.n};
      const StepPanel panel{row, std::min(rows, s.m - row), column, std::min(columns, s.n - column)};
      kernel(rule, task, panel, scratch.data());
    }
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_tensorcore_steps_cpu, steps,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Ret<ffi::Buffer<ffi::U32>>()
                                  .Attr<int64_t>("format_a")
                                  .Attr<int64_t>("format_b")
                                  .Attr<int64_t>("length")
                                  .Attr<int64_t>("fraction_bits")
                                  .Attr<int64_t>("zero_exponent")
                                  .Attr<int64_t>("output_bits")
                                  .Attr<int64_t>("half"));

}  // namespace jaxmd
