// jaxmd_single_matmul on the CPU: the CUDA kernels' arithmetic (single_matmul.h) bit for bit, for tests and for study.
// A thread splits a panel of 16 columns of B, then row after row of A, and hands them to single_emulate_simd.cc.
#include <cmath>
#include <cstring>
#include <vector>

#include "isa.h"
#include "single_emulate.h"
#include "single_matmul_args.h"
#include "threads.h"

namespace jaxmd {

JAXMD_FOR_EACH_ISA(extern SingleEmulator single_emulate;)

namespace {

namespace ffi = xla::ffi;

struct Piece {
  int32_t significand, exponent;  // significand 2^(exponent - 10)
  double value() const { return std::ldexp(double(significand), exponent - 10); }
};

// The nearest number of 11 bits with an exponent of at least `least`; ties to even, or away from zero.
Piece nearest(double x, int least, bool even) {
  if (x == 0 || !std::isfinite(x)) return {0, kSingleZero};
  int exponent = std::ilogb(x);
  if (exponent < least) exponent = least;
  const double scaled = std::ldexp(x, 10 - exponent);
  int32_t significand = static_cast<int32_t>(even ? std::nearbyint(scaled) : std::round(scaled));
  if (significand == 2048 || significand == -2048) significand /= 2, ++exponent;
  return {significand, significand == 0 ? kSingleZero : exponent};
}

struct Storage {
  std::vector<int32_t> words;
  int64_t size;
  Storage(int64_t k, int64_t columns) : words(6 * k * columns), size(k * columns) {}
  SinglePieces pieces() {
    int32_t* const p = words.data();
    return {{p, p + size, p + 2 * size}, {p + 3 * size, p + 4 * size, p + 5 * size}};
  }
};

// x 2^shift into place `at`
void split(float x, int shift, SingleFormat format, const SinglePieces& to, int64_t at) {
  double rest = x * std::ldexp(1.0f, shift);  // float32, as on the GPU; what remains of it too
  const bool f16 = format == SingleFormat::f16;
  for (int i = 0; i < 3; ++i) {
    const Piece piece = nearest(rest, f16 ? -14 : -126, f16);
    to.significand[i][at] = piece.significand, to.exponent[i][at] = piece.exponent;
    rest -= piece.value();
  }
}

// Where term l is taken.
int64_t place(int64_t l, SingleFormat format) {
  if (format == SingleFormat::f16) return l;
  const int64_t r = l % kSingleTerms;
  return l - r + (r & 2) * 4 + (r >> 2) * 2 + (r & 1);
}

// A term counts where a factor is Inf or NaN: these alone decide a result that is neither finite.
float nonfinite_sum(const float* a, const float* b, int64_t k, int64_t n) {
  float sum = 0;
  for (int64_t l = 0; l < k; ++l) {
    if (!std::isfinite(a[l]) || !std::isfinite(b[l * n])) sum += a[l] * b[l * n];
  }
  return sum;
}

bool is_nonfinite(int32_t max_bits) { return max_bits >> 23 == kSingleNonfinite; }

ffi::Error single_matmul(ffi::ThreadPool pool, int64_t format_number, ffi::Buffer<ffi::F32> a,
                         ffi::Buffer<ffi::F32> b, ffi::Buffer<ffi::S32> row, ffi::Buffer<ffi::S32> column,
                         ffi::ResultBuffer<ffi::F32> c) {
  ProductShape s;
  JAXMD_CHECK(single_shape(a.dimensions(), b.dimensions(), row.dimensions(), column.dimensions(), c->dimensions(),
                           format_number, &s));
  const auto format = static_cast<SingleFormat>(format_number);
  const bool is_short = s.k < kSingleShort;
  const int chunk = single_chunk(format, is_short);
  const int64_t chunks = (s.k + chunk - 1) / chunk, k = chunks * chunk;
  const int64_t panels = (s.n + kSingleColumns - 1) / kSingleColumns;
  SingleEmulator* const emulate = JAXMD_CHOSEN(single_emulate);
  const float *const all_a = a.typed_data(), *const all_b = b.typed_data();
  const int32_t *const rows = row.typed_data(), *const columns = column.typed_data();
  float* const all_c = c->typed_data();
  parallel_for(pool, s.batch * panels, 1, [=](int64_t begin, int64_t end) {
    Storage left(k, 1), right(k, kSingleColumns);
    for (int64_t t = begin; t < end; ++t) {
      const int64_t z = t / panels, first = t % panels * kSingleColumns;
      const int64_t width = s.n - first < kSingleColumns ? s.n - first : kSingleColumns;
      const float *const a_z = all_a + z * s.m * s.k, *const b_z = all_b + z * s.k * s.n;
      const int32_t *const row_z = rows + z * s.m, *const column_z = columns + z * s.n;
      for (int64_t l = 0; l < k; ++l) {
        for (int64_t j = 0; j < kSingleColumns; ++j) {
          const bool inside = l < s.k && j < width;
          split(inside ? b_z[l * s.n + first + j] : 0.0f, inside ? single_shift(column_z[first + j]) : 0, format,
                right.pieces(), place(l, format) * kSingleColumns + j);
        }
      }
      for (int64_t i = 0; i < s.m; ++i) {
        for (int64_t l = 0; l < k; ++l) {
          split(l < s.k ? a_z[i * s.k + l] : 0.0f, single_shift(row_z[i]), format, left.pieces(), place(l, format));
        }
        float sums[kSingleColumns];
        emulate(left.pieces(), right.pieces(), chunks, format, is_short, sums);
        for (int64_t j = 0; j < width; ++j) {
          const int shift = single_shift(row_z[i]) + single_shift(column_z[first + j]);
          float& to = all_c[(z * s.m + i) * s.n + first + j];
          to = static_cast<float>(std::ldexp(double(sums[j]), -shift));  // one rounding, also of a subnormal
          if (is_nonfinite(row_z[i]) || is_nonfinite(column_z[first + j])) {
            to = nonfinite_sum(a_z + i * s.k, b_z + first + j, s.k, s.n);
          }
        }
      }
    }
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_single_matmul_cpu, single_matmul,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<int64_t>("format")
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());

}  // namespace jaxmd
