// CPU handlers of the elementwise operations: decode, check, run the chosen instruction set's kernel on the pool.
#include <string>
#include <vector>

#include "elementwise.h"
#include "huge_pages.h"
#include "threads.h"
#include "xla/ffi/api/ffi.h"

namespace jaxmd {
namespace {

namespace ffi = xla::ffi;

constexpr int kLimit = 16;
constexpr int kTermLimit = 128;

const ElementwiseKernels& kernels() {
  static const ElementwiseKernels& chosen = JAXMD_CHOSEN(elementwise);
  return chosen;
}

ffi::Error invalid(const char* who, const std::string& what) {
  return ffi::Error::InvalidArgument("jaxmd." + std::string(who) + ": " + what);
}

// The buffers of one call: operands and results of type float64 and of one element count.
struct Buffers {
  std::vector<const double*> in;
  std::vector<double*> out;
  int64_t count = 0;
};

// Collects `args` but the last `others` and all `rets`, and checks what would corrupt memory.
ffi::Error collect(const char* who, ffi::RemainingArgs args, ffi::RemainingRets rets, size_t others, size_t limit,
                   Buffers* buffers) {
  if (args.size() <= others || args.size() - others > limit || rets.size() < 1 || rets.size() > kLimit) {
    return invalid(who, std::to_string(args.size()) + " operands and " + std::to_string(rets.size()) +
                            " results came; at most " + std::to_string(limit) + " and 16 were wanted.");
  }
  const auto wrong = [&](const ffi::AnyBuffer& b) {
    return b.element_type() != ffi::F64 || static_cast<int64_t>(b.element_count()) != buffers->count;
  };
  for (size_t i = 0; i < args.size() - others; ++i) {
    const auto b = args.get<ffi::AnyBuffer>(i);
    if (!b.has_value()) return b.error();
    if (i == 0) buffers->count = static_cast<int64_t>(b->element_count());
    if (wrong(*b)) return invalid(who, "operands differ in shape or type; equal float64 shapes were wanted.");
    buffers->in.push_back(static_cast<const double*>(b->untyped_data()));
  }
  for (size_t i = 0; i < rets.size(); ++i) {
    auto b = rets.get<ffi::AnyBuffer>(i);
    if (!b.has_value()) return b.error();
    if (wrong(**b)) return invalid(who, "results are not the operands' float64 shape, which was wanted.");
    buffers->out.push_back(static_cast<double*>((*b)->untyped_data()));
    prefer_huge_pages(buffers->out.back(), (*b)->size_bytes());
  }
  return ffi::Error::Success();
}

// Elements per chunk for an operation that costs about `flops` an element: some 30 µs of work, whole cache lines.
int64_t grain(int64_t flops) {
  const int64_t elements = 200000 / (flops > 20 ? flops : 20);
  return elements < 64 ? 64 : elements / 64 * 64;
}

int64_t cubed(int64_t limbs) { return 40 + 10 * limbs * limbs + 2 * limbs * limbs * limbs; }

ffi::Error binary(const char* who, ElementwiseKernels::Binary kernel, int64_t flops, ffi::ThreadPool& pool,
                  int64_t lhs_limbs, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  Buffers b;
  if (ffi::Error error = collect(who, args, rets, 0, 2 * kLimit, &b); error.failure()) return error;
  const int nx = static_cast<int>(lhs_limbs), ny = static_cast<int>(b.in.size()) - nx;
  if (lhs_limbs < 1 || lhs_limbs > kLimit || ny < 1 || ny > kLimit) {
    return invalid(who, "lhs_limbs is " + std::to_string(lhs_limbs) + " of " + std::to_string(b.in.size()) +
                            " operand limbs; 1 to 16 on each side were wanted.");
  }
  const int limbs = static_cast<int>(b.out.size());
  parallel_for(pool, b.count, grain(flops * cubed(limbs)), [&](int64_t begin, int64_t end) {
    kernel(b.in.data(), nx, b.in.data() + nx, ny, b.out.data(), limbs, begin, end);
  });
  return ffi::Error::Success();
}

ffi::Error add(ffi::ThreadPool pool, int64_t lhs_limbs, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return binary("add", kernels().add, 1, pool, lhs_limbs, args, rets);
}
ffi::Error mul(ffi::ThreadPool pool, int64_t lhs_limbs, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return binary("mul", kernels().mul, 1, pool, lhs_limbs, args, rets);
}
ffi::Error div(ffi::ThreadPool pool, int64_t lhs_limbs, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return binary("div", kernels().div, 3, pool, lhs_limbs, args, rets);
}

ffi::Error sqrt(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  Buffers b;
  if (ffi::Error error = collect("sqrt", args, rets, 0, kLimit, &b); error.failure()) return error;
  const int limbs = static_cast<int>(b.out.size());
  parallel_for(pool, b.count, grain(3 * cubed(limbs)), [&](int64_t begin, int64_t end) {
    kernels().sqrt(b.in.data(), static_cast<int>(b.in.size()), b.out.data(), limbs, begin, end);
  });
  return ffi::Error::Success();
}

ffi::Error renormalize(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  Buffers b;
  if (ffi::Error error = collect("renormalize", args, rets, 0, kTermLimit, &b); error.failure()) return error;
  const int n = static_cast<int>(b.in.size()), limbs = static_cast<int>(b.out.size());
  parallel_for(pool, b.count, grain(6 * n * limbs), [&](int64_t begin, int64_t end) {
    kernels().renormalize(b.in.data(), n, b.out.data(), limbs, begin, end);
  });
  return ffi::Error::Success();
}

ffi::Error scale(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  Buffers b;
  if (ffi::Error error = collect("scale", args, rets, 1, kLimit, &b); error.failure()) return error;
  if (b.in.size() != b.out.size()) return invalid("scale", "as many results as operand limbs were wanted.");
  const auto exponent = args.get<ffi::AnyBuffer>(args.size() - 1);
  if (!exponent.has_value()) return exponent.error();
  if (exponent->element_type() != ffi::S32 || static_cast<int64_t>(exponent->element_count()) != b.count) {
    return invalid("scale", "the exponent differs from the limbs in shape or is not int32; that was wanted.");
  }
  const auto* e = static_cast<const int32_t*>(exponent->untyped_data());
  const int n = static_cast<int>(b.in.size());
  parallel_for(pool, b.count, grain(10 * n), [&](int64_t begin, int64_t end) {
    kernels().scale(b.in.data(), n, e, b.out.data(), begin, end);
  });
  return ffi::Error::Success();
}

ffi::Error pair(const char* who, decltype(ElementwiseKernels::two_sum) kernel, ffi::ThreadPool& pool,
                ffi::RemainingArgs args, ffi::RemainingRets rets) {
  Buffers b;
  if (ffi::Error error = collect(who, args, rets, 0, 2, &b); error.failure()) return error;
  if (b.in.size() != 2 || b.out.size() != 2) return invalid(who, "two operands and two results were wanted.");
  parallel_for(pool, b.count, grain(20), [&](int64_t begin, int64_t end) {
    kernel(b.in.data(), b.out.data(), begin, end);
  });
  return ffi::Error::Success();
}

ffi::Error two_sum(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return pair("two_sum", kernels().two_sum, pool, args, rets);
}
ffi::Error two_prod(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return pair("two_prod", kernels().two_prod, pool, args, rets);
}

auto unary_binding() { return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().RemainingArgs().RemainingRets(); }
auto binary_binding() {
  return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Attr<int64_t>("lhs_limbs").RemainingArgs().RemainingRets();
}

}  // namespace
}  // namespace jaxmd

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_add_cpu, jaxmd::add, jaxmd::binary_binding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_mul_cpu, jaxmd::mul, jaxmd::binary_binding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_div_cpu, jaxmd::div, jaxmd::binary_binding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_sqrt_cpu, jaxmd::sqrt, jaxmd::unary_binding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_renormalize_cpu, jaxmd::renormalize, jaxmd::unary_binding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_scale_cpu, jaxmd::scale, jaxmd::unary_binding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_two_sum_cpu, jaxmd::two_sum, jaxmd::unary_binding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_two_prod_cpu, jaxmd::two_prod, jaxmd::unary_binding());
