// Settled exponents and magnitudes of rows and of columns (certificate.h).
//
// Idea: of most entries the leading bits of two limbs tell enough: if y's exponent is 54 below x's and x is no power of
//   two, y settles x, and the exponent of x is that of its own. So a maximum of leading limbs is looked for, in spans of
//   64 entries whose loops the compiler vectorizes; the other entries are told from all their bits, one by one.
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

constexpr int kSpan = kCertificateSpan;
constexpr uint64_t kSign = uint64_t{1} << 63, kExponentBits = uint64_t{0x7ff} << 52, kOne = uint64_t{1} << 52;

// Magnitudes of the leading limbs of up to 64 entries, 0 of those that the leading bits do not tell, if there are such.
struct Leading {
  int64_t size[kSpan];
  bool others;
};

void look(const LimbPointers<const double>& x, int64_t at, int64_t count, Leading* out) {
  uint64_t before[kSpan] = {}, plain[kSpan];
  std::memcpy(before, x.limb[0] + at, count * sizeof(double));
  for (int i = 0; i < kSpan; ++i) {
    const uint64_t size = before[i] & ~kSign;
    out->size[i] = static_cast<int64_t>(size);
    plain[i] = (size >= kOne && size < kExponentBits) || size == 0 ? ~uint64_t{0} : 0;
  }
  for (int g = 1; g < x.count; ++g) {
    uint64_t limb[kSpan] = {};
    std::memcpy(limb, x.limb[g] + at, count * sizeof(double));
    for (int i = 0; i < kSpan; ++i) {
      const int64_t gap = static_cast<int64_t>(before[i] & kExponentBits) - static_cast<int64_t>(limb[i] & kExponentBits);
      const bool below = gap >= static_cast<int64_t>(54 * kOne) && (before[i] & (kOne - 1)) != 0;
      plain[i] &= below || (limb[i] & ~kSign) == 0 ? ~uint64_t{0} : 0;
      before[i] = limb[i];
    }
  }
  uint64_t all = ~uint64_t{0};
  for (int i = 0; i < kSpan; ++i) {
    out->size[i] &= static_cast<int64_t>(plain[i]);
    all &= plain[i];
  }
  out->others = all == 0;
}

int exponent_of_size(int64_t size) { return size == 0 ? 2 * kZeroExponent : static_cast<int>(size >> 52) - 1022; }

// The exponents of the entries that `look` did not tell, each to note(i, e).
template <class Note>
void others(const LimbPointers<const double>& x, int64_t at, int64_t count, const Leading& leading, Note note) {
  if (!leading.others) return;
  for (int64_t i = 0; i < count; ++i) {
    if (leading.size[i] == 0) note(i, settled_exponent(x, at + i));
  }
}

bool rows(const CertificateSide& side, int64_t first, int64_t last) {
  bool settled = true;
  for (int64_t row = first; row < last; ++row) {
    int64_t top = 0;
    int best = 2 * kZeroExponent;
    for (int64_t l = 0; l < side.k; l += kSpan) {
      const int64_t at = row * side.k + l, count = std::min<int64_t>(kSpan, side.k - l);
      Leading leading;
      look(side.x, at, count, &leading);
      for (int i = 0; i < kSpan; ++i) top = std::max(top, leading.size[i]);
      others(side.x, at, count, leading, [&](int64_t, int e) { best = std::max(best, e); });
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
      Leading leading;
      look(side.x, from + l * side.rows, count, &leading);
      for (int i = 0; i < kSpan; ++i) top[i] = std::max(top[i], leading.size[i]);
      others(side.x, from + l * side.rows, count, leading, [&](int64_t i, int e) { best[i] = std::max(best[i], e); });
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
