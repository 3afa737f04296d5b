// Settled exponents and magnitudes of rows and of columns (certificate.h).
//
// Idea: of most entries the leading bits of two limbs tell enough: if y's exponent is 54 below x's and x is no power of
//   two, y settles x, and the exponent of x is that of its own. So spans of 64 entries are looked through in loops
//   that the compiler vectorizes, and where they tell all 64 only the largest leading limb is taken; the entries of
//   the other spans are told from all their bits, one by one. Of columns a span is a short piece of a row in memory,
//   which processors don't follow to the next row, so it is sent for: that halves their time.
// Exact: integers.
// Cost: one pass over the limbs.
#include "certificate.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "settled.h"

namespace jaxmd {
namespace JAXMD_ISA {
namespace {

constexpr int kSpan = kCertificateSpan, kAhead = 8;  // rows of memory
constexpr uint64_t kSign = uint64_t{1} << 63;
constexpr int64_t kExponentBits = int64_t{0x7ff} << 52, kOne = int64_t{1} << 52;

uint64_t bits_at(const double* x) {
  uint64_t bits;
  std::memcpy(&bits, x, sizeof bits);
  return bits;
}

// |x| as an integer, which orders as |x| does.
int64_t size_at(const double* x) { return static_cast<int64_t>(bits_at(x) & ~kSign); }

// Whether the leading bits tell the exponents of the `count` entries from `at` on.
bool told(const LimbPointers<const double>& x, int64_t at, int64_t count) {
  uint64_t all = ~uint64_t{0};
  for (int64_t i = 0; i < count; ++i) {
    const int64_t size = size_at(x.limb[0] + at + i);
    all &= (size >= kOne && size < kExponentBits) || size == 0 ? ~uint64_t{0} : 0;
  }
  for (int g = 1; g < x.count; ++g) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t before = size_at(x.limb[g - 1] + at + i), after = size_at(x.limb[g] + at + i);
      const bool below = (before & kExponentBits) - (after & kExponentBits) >= 54 * kOne && (before & (kOne - 1)) != 0;
      all &= below || after == 0 ? ~uint64_t{0} : 0;
    }
  }
  return all == ~uint64_t{0};
}

int exponent_of_size(int64_t size) { return size == 0 ? 2 * kZeroExponent : static_cast<int>(size >> 52) - 1022; }

bool rows(const CertificateSide& side, int64_t first, int64_t last) {
  bool settled = true;
  for (int64_t row = first; row < last; ++row) {
    int64_t top = 0;
    int best = 2 * kZeroExponent;
    for (int64_t l = 0; l < side.k; l += kSpan) {
      const int64_t at = row * side.k + l, count = std::min<int64_t>(kSpan, side.k - l);
      if (told(side.x, at, count)) {
        for (int64_t i = 0; i < count; ++i) top = std::max(top, size_at(side.x.limb[0] + at + i));
      } else {
        for (int64_t i = 0; i < count; ++i) best = std::max(best, settled_exponent(side.x, at + i));
      }
    }
    const int e = shared_exponent(std::max(best, exponent_of_size(top)));
    side.exponent[row] = e;
    settled = settled && e < kUnsettled;
    const double factor = magnitude_factor(e);
    int8_t* const out = side.magnitude + row * side.kept;
    const double* const x = side.x.limb[0] + row * side.k;
    std::memset(out, 0, side.kept);
    if (factor == 0) continue;  // an entry may be nan
    for (int64_t l = 0; l < side.terms; ++l) {
      out[l] = static_cast<int8_t>(std::min(127, static_cast<int>(std::fabs(x[l]) * factor)));
    }
  }
  return settled;
}

bool columns(const CertificateSide& side, int64_t first, int64_t last) {
  const int64_t spans = (side.rows + kSpan - 1) / kSpan;
  bool settled = true;
  for (int64_t span = first; span < last; ++span) {
    const int64_t batch = span / spans, j = span % spans * kSpan, count = std::min<int64_t>(kSpan, side.rows - j);
    int64_t top[kSpan] = {};
    int best[kSpan];
    std::fill(best, best + kSpan, 2 * kZeroExponent);
    const int64_t from = batch * side.k * side.rows + j;
    for (int64_t l = 0; l < side.k; ++l) {
      const int64_t at = from + l * side.rows;
      for (int g = 0; g < side.x.count; ++g) {
        for (int64_t i = 0; i < count; i += 8) __builtin_prefetch(side.x.limb[g] + at + kAhead * side.rows + i);
      }
      if (told(side.x, at, count)) {
        for (int64_t i = 0; i < count; ++i) top[i] = std::max(top[i], size_at(side.x.limb[0] + at + i));
      } else {
        for (int64_t i = 0; i < count; ++i) best[i] = std::max(best[i], settled_exponent(side.x, at + i));
      }
    }
    double factor[kSpan] = {};
    int8_t* const out = side.magnitude + (batch * side.rows + j) * side.kept;
    for (int64_t i = 0; i < count; ++i) {
      const int e = shared_exponent(std::max(best[i], exponent_of_size(top[i])));
      side.exponent[batch * side.rows + j + i] = e;
      settled = settled && e < kUnsettled;
      factor[i] = magnitude_factor(e);
      std::memset(out + i * side.kept, 0, side.kept);
    }
    for (int64_t l = 0; l < side.terms; ++l) {
      const double* const x = side.x.limb[0] + from + l * side.rows;
      for (int64_t i = 0; i < count; ++i) {
        const double scaled = factor[i] == 0 ? 0 : std::fabs(x[i]) * factor[i];
        out[i * side.kept + l] = static_cast<int8_t>(std::min(127, static_cast<int>(scaled)));
      }
    }
  }
  return settled;
}

}  // namespace

extern const CertificateKernels certificate_kernels;
const CertificateKernels certificate_kernels = {rows, columns};

}  // namespace JAXMD_ISA
}  // namespace jaxmd
