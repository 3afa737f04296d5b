// CUDA kernels and handlers of the elementwise operations, one element a thread in a grid-stride loop.
//
// The arithmetic is that of arithmetic.h with V = double and named roundings, so the bits are the CPU's. Operands and
// results are separate limb arrays, whose pointers travel in the launch parameters.
#include <cuda_runtime.h>

#include <string>

#include "arithmetic.h"
#include "xla/ffi/api/ffi.h"

namespace jaxmd {
namespace {

namespace ffi = xla::ffi;
using namespace JAXMD_ISA;  // NOLINT: the arithmetic of this translation unit

constexpr int kThreads = 128;
constexpr int kMaxBlocks = 8192;

// Pointers of one call, by value: 8 bytes each of the 4 KB that a launch may carry.
template <int kIn>
struct Pointers {
  const double* in[kIn];
  double* out[kMaxLimbs];
  int64_t count;
  int ins, outs;
};
using Operands = Pointers<2 * kMaxLimbs>;
using Terms = Pointers<kMaxTerms>;

JAXMD_INLINE int64_t first_index() {
#if defined(__CUDA_ARCH__)
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
#else
  return 0;
#endif
}
JAXMD_INLINE int64_t stride() {
#if defined(__CUDA_ARCH__)
  return static_cast<int64_t>(gridDim.x) * blockDim.x;
#else
  return 1;
#endif
}

// Blocks to keep on a multiprocessor: the common path fits the registers this leaves, and hides the loads' latency;
// only the careful path spills.
constexpr int resident_blocks(int limbs) { return limbs == 0 ? 2 : limbs <= 2 ? 8 : 5; }

struct Add {
  template <int K>
  static __device__ bool fast(double* x, int nx, double* y, int ny, int limbs, double* r) {
    return add_fast<K>(x, nx, y, ny, limbs, r);
  }
  static __device__ void careful(const double* x, int nx, const double* y, int ny, int limbs, double* r) {
    add_careful(x, nx, y, ny, limbs, r);
  }
};
struct Mul {
  template <int K>
  static __device__ bool fast(double* x, int nx, double* y, int ny, int limbs, double* r) {
    return mul_fast<K>(x, nx, y, ny, limbs, r);
  }
  static __device__ void careful(const double* x, int nx, const double* y, int ny, int limbs, double* r) {
    mul_careful(x, nx, y, ny, limbs, r);
  }
};
struct Div {
  template <int K>
  static __device__ bool fast(double* x, int nx, double* y, int ny, int limbs, double* r) {
    return div_fast<K>(x, nx, y, ny, limbs, r);
  }
  static __device__ void careful(const double* x, int nx, const double* y, int ny, int limbs, double* r) {
    div_careful(x, nx, y, ny, limbs, r);
  }
};
struct Sqrt {
  template <int K>
  static __device__ bool fast(double* x, int nx, double*, int, int limbs, double* r) {
    return sqrt_fast<K>(x, nx, limbs, r);
  }
  static __device__ void careful(const double* x, int nx, const double*, int, int limbs, double* r) {
    sqrt_careful(x, nx, limbs, r);
  }
};

// K: the limb count of operands and result as a constant, or 0 for any counts. ny = 0 for one operand.
template <class Op, int K>
__global__ void __launch_bounds__(kThreads, resident_blocks(K)) arithmetic_kernel(const Operands p, int nx, int ny) {
  constexpr int size = K == 0 ? kMaxLimbs : K;
  const int limbs = K == 0 ? p.outs : K;
  if (K > 0) {
    nx = K;
    ny = ny == 0 ? 0 : K;
  }
  for (int64_t at = first_index(); at < p.count; at += stride()) {
    double x[size], y[size], r[size];
    each<K>(nx, [&](int i) { x[i] = p.in[i][at]; });
    if (ny > 0) each<K>(ny, [&](int i) { y[i] = p.in[nx + i][at]; });
    if (!Op::template fast<K>(x, nx, y, ny, limbs, r)) {
      double a[size], b[size], c[size];
      JAXMD_ROLLED
      for (int i = 0; i < nx; ++i) a[i] = p.in[i][at];
      JAXMD_ROLLED
      for (int i = 0; i < ny; ++i) b[i] = p.in[nx + i][at];
      Op::careful(a, nx, b, ny, limbs, c);
      each<K>(limbs, [&](int i) { r[i] = c[i]; });
    }
    each<K>(limbs, [&](int i) { p.out[i][at] = r[i]; });
  }
}

// N ≥ p.ins and L = p.outs as constants (missing terms count as zeros), or 0 for any counts.
template <int N, int L>
__global__ void __launch_bounds__(kThreads, resident_blocks(L)) renormalize_kernel(const Terms p) {
  const int n = N == 0 ? p.ins : N;
  const int limbs = L == 0 ? p.outs : L;
  const int kept = limbs < n ? limbs : n;
  for (int64_t at = first_index(); at < p.count; at += stride()) {
    double x[N == 0 ? kMaxTerms : N];
    double size = 0;
    each<N>(n, [&](int i) {
      x[i] = i < p.ins ? p.in[i][at] : 0.0;
      size = add_rn(size, fabs(x[i]));
    });
    if (size == 0) {
      p.out[0][at] = p.in[0][at];
      for (int i = 1; i < limbs; ++i) p.out[i][at] = 0;
      continue;
    }
    if (distill<N>(x, n, kept)) {
      each<L>(limbs, [&](int i) { p.out[i][at] = i == 0 && x[0] == 0 ? 0.0 : i < kept ? x[i] : 0.0; });
    } else {
      double t[N == 0 ? kMaxTerms : N], r[L == 0 ? kMaxLimbs : L];
      for (int i = 0; i < p.ins; ++i) t[i] = p.in[i][at];
      exact_sum(t, p.ins, limbs, 0, r);
      for (int i = 0; i < limbs; ++i) p.out[i][at] = r[i];
    }
  }
}

__global__ void __launch_bounds__(kThreads) scale_kernel(const Operands p, const int32_t* exponent) {
  for (int64_t at = first_index(); at < p.count; at += stride()) {
    double x[kMaxLimbs], r[kMaxLimbs];
    for (int i = 0; i < p.ins; ++i) x[i] = p.in[i][at];
    const int e = exponent[at];
    const bool moderate = e >= -1000 && e <= 1000;
    if (!moderate || !scale_fast(x, p.ins, power_of_two(moderate ? e : 0), power_of_two(moderate ? -e : 0), r)) {
      scale_careful(x, p.ins, e, r);
    }
    for (int i = 0; i < p.outs; ++i) p.out[i][at] = r[i];
  }
}

__global__ void __launch_bounds__(kThreads) two_sum_kernel(const Operands p) {
  for (int64_t at = first_index(); at < p.count; at += stride()) {
    const double a = p.in[0][at], b = p.in[1][at];
    double r[2];
    if (!two_sum_fast(a, b, r)) two_sum_careful(a, b, r);
    p.out[0][at] = r[0];
    p.out[1][at] = r[1];
  }
}

__global__ void __launch_bounds__(kThreads) two_prod_kernel(const Operands p) {
  for (int64_t at = first_index(); at < p.count; at += stride()) {
    const double a = p.in[0][at], b = p.in[1][at];
    double r[2];
    if (!two_prod_fast(a, b, r)) two_prod_careful(a, b, r);
    p.out[0][at] = r[0];
    p.out[1][at] = r[1];
  }
}

// ---- launches

int blocks(int64_t count) {
  const int64_t wanted = (count + kThreads - 1) / kThreads;
  return static_cast<int>(wanted < kMaxBlocks ? wanted : kMaxBlocks);
}

template <class Op>
void launch_arithmetic(cudaStream_t stream, const Operands& p, int nx, int ny) {
  auto kernel = arithmetic_kernel<Op, 0>;
  if (nx == p.outs && (ny == 0 || ny == p.outs)) {
    if (p.outs == 1) kernel = arithmetic_kernel<Op, 1>;
    if (p.outs == 2) kernel = arithmetic_kernel<Op, 2>;
    if (p.outs == 3) kernel = arithmetic_kernel<Op, 3>;
    if (p.outs == 4) kernel = arithmetic_kernel<Op, 4>;
  }
  kernel<<<blocks(p.count), kThreads, 0, stream>>>(p, nx, ny);
}

// A product of L limbs ends in about 3L orders: up to 4L terms stay in registers.
void launch_renormalize(cudaStream_t stream, const Terms& p) {
  auto kernel = renormalize_kernel<0, 0>;
  if (p.outs == 1 && p.ins <= 4) kernel = renormalize_kernel<4, 1>;
  if (p.outs == 2 && p.ins <= 8) kernel = renormalize_kernel<8, 2>;
  if (p.outs == 3 && p.ins <= 12) kernel = renormalize_kernel<12, 3>;
  if (p.outs == 4 && p.ins <= 16) kernel = renormalize_kernel<16, 4>;
  kernel<<<blocks(p.count), kThreads, 0, stream>>>(p);
}

// ---- handlers

ffi::Error invalid(const char* who, const std::string& what) {
  return ffi::Error::InvalidArgument("jaxmd." + std::string(who) + ": " + what);
}

ffi::Error launched(const char* who) {
  const cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal("jaxmd." + std::string(who) + ": launch failed: " + cudaGetErrorString(status));
}

// Collects `args` but the last `others` and all `rets`, and checks what would corrupt memory.
template <int kIn>
ffi::Error collect(const char* who, ffi::RemainingArgs args, ffi::RemainingRets rets, size_t others, Pointers<kIn>* p) {
  if (args.size() <= others || args.size() - others > kIn || rets.size() < 1 || rets.size() > kMaxLimbs) {
    return invalid(who, std::to_string(args.size()) + " operands and " + std::to_string(rets.size()) +
                            " results came; at most " + std::to_string(kIn) + " and 16 were wanted.");
  }
  p->ins = static_cast<int>(args.size() - others);
  p->outs = static_cast<int>(rets.size());
  p->count = 0;
  const auto wrong = [&](const ffi::AnyBuffer& b) {
    return b.element_type() != ffi::F64 || static_cast<int64_t>(b.element_count()) != p->count;
  };
  for (int i = 0; i < p->ins; ++i) {
    const auto b = args.get<ffi::AnyBuffer>(i);
    if (!b.has_value()) return b.error();
    if (i == 0) p->count = static_cast<int64_t>(b->element_count());
    if (wrong(*b)) return invalid(who, "operands differ in shape or type; equal float64 shapes were wanted.");
    p->in[i] = static_cast<const double*>(b->untyped_data());
  }
  for (int i = 0; i < p->outs; ++i) {
    auto b = rets.get<ffi::AnyBuffer>(i);
    if (!b.has_value()) return b.error();
    if (wrong(**b)) return invalid(who, "results are not the operands' float64 shape, which was wanted.");
    p->out[i] = static_cast<double*>((*b)->untyped_data());
  }
  return ffi::Error::Success();
}

template <class Op>
ffi::Error binary(const char* who, cudaStream_t stream, int64_t lhs_limbs, ffi::RemainingArgs args,
                  ffi::RemainingRets rets) {
  Operands p;
  if (ffi::Error error = collect(who, args, rets, 0, &p); error.failure()) return error;
  const int64_t ny = p.ins - lhs_limbs;
  if (lhs_limbs < 1 || lhs_limbs > kMaxLimbs || ny < 1 || ny > kMaxLimbs) {
    return invalid(who, "lhs_limbs is " + std::to_string(lhs_limbs) + " of " + std::to_string(p.ins) +
                            " operand limbs; 1 to 16 on each side were wanted.");
  }
  if (p.count == 0) return ffi::Error::Success();
  launch_arithmetic<Op>(stream, p, static_cast<int>(lhs_limbs), static_cast<int>(ny));
  return launched(who);
}

ffi::Error add(cudaStream_t stream, int64_t lhs_limbs, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return binary<Add>("add", stream, lhs_limbs, args, rets);
}
ffi::Error mul(cudaStream_t stream, int64_t lhs_limbs, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return binary<Mul>("mul", stream, lhs_limbs, args, rets);
}
ffi::Error div(cudaStream_t stream, int64_t lhs_limbs, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return binary<Div>("div", stream, lhs_limbs, args, rets);
}

ffi::Error sqrt(cudaStream_t stream, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  Operands p;
  if (ffi::Error error = collect("sqrt", args, rets, 0, &p); error.failure()) return error;
  if (p.ins > kMaxLimbs) return invalid("sqrt", "at most 16 operand limbs were wanted.");
  if (p.count == 0) return ffi::Error::Success();
  launch_arithmetic<Sqrt>(stream, p, p.ins, 0);
  return launched("sqrt");
}

ffi::Error renormalize(cudaStream_t stream, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  Terms p;
  if (ffi::Error error = collect("renormalize", args, rets, 0, &p); error.failure()) return error;
  if (p.count == 0) return ffi::Error::Success();
  launch_renormalize(stream, p);
  return launched("renormalize");
}

ffi::Error scale(cudaStream_t stream, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  Operands p;
  if (ffi::Error error = collect("scale", args, rets, 1, &p); error.failure()) return error;
  if (p.ins != p.outs) return invalid("scale", "as many results as operand limbs were wanted.");
  const auto exponent = args.get<ffi::AnyBuffer>(args.size() - 1);
  if (!exponent.has_value()) return exponent.error();
  if (exponent->element_type() != ffi::S32 || static_cast<int64_t>(exponent->element_count()) != p.count) {
    return invalid("scale", "the exponent differs from the limbs in shape or is not int32; that was wanted.");
  }
  if (p.count == 0) return ffi::Error::Success();
  scale_kernel<<<blocks(p.count), kThreads, 0, stream>>>(p, static_cast<const int32_t*>(exponent->untyped_data()));
  return launched("scale");
}

ffi::Error pair(const char* who, void (*kernel)(Operands), cudaStream_t stream, ffi::RemainingArgs args,
                ffi::RemainingRets rets) {
  Operands p;
  if (ffi::Error error = collect(who, args, rets, 0, &p); error.failure()) return error;
  if (p.ins != 2 || p.outs != 2) return invalid(who, "two operands and two results were wanted.");
  if (p.count == 0) return ffi::Error::Success();
  kernel<<<blocks(p.count), kThreads, 0, stream>>>(p);
  return launched(who);
}

ffi::Error two_sum(cudaStream_t stream, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return pair("two_sum", two_sum_kernel, stream, args, rets);
}
ffi::Error two_prod(cudaStream_t stream, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return pair("two_prod", two_prod_kernel, stream, args, rets);
}

auto unary_binding() {
  return ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>().RemainingArgs().RemainingRets();
}
auto binary_binding() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::PlatformStream<cudaStream_t>>()
      .Attr<int64_t>("lhs_limbs")
      .RemainingArgs()
      .RemainingRets();
}

}  // namespace
}  // namespace jaxmd

#define JAXMD_DEFINE(name, binding)                                                       \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_##name##_cuda, jaxmd::name, jaxmd::binding(), \
                                {xla::ffi::Traits::kCmdBufferCompatible})
JAXMD_DEFINE(add, binary_binding);
JAXMD_DEFINE(mul, binary_binding);
JAXMD_DEFINE(div, binary_binding);
JAXMD_DEFINE(sqrt, unary_binding);
JAXMD_DEFINE(renormalize, unary_binding);
JAXMD_DEFINE(scale, unary_binding);
JAXMD_DEFINE(two_sum, unary_binding);
JAXMD_DEFINE(two_prod, unary_binding);
