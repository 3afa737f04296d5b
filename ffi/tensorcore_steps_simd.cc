// d = ρ(c + Σ_l a_l b_l), step after step, for a panel of one case, on vectors of columns.
//
// Shapes: tensorcore_steps.h. Compiled once per instruction set: vectors of 4 (SSE2, NEON), 8 (AVX2) or 16 lanes.
// Tiling: the panel's columns of b are decoded once, [l][column], padded to whole vectors; a row of a as well. A vector
//   of outputs goes through all its steps before the next, so that c stays in registers.
// Exact: integers; the same bits on every instruction set, and as in JAX.
// Cost: two passes over the L terms, about sixteen vector operations a term, and thirty an output and step to round:
//   0.2 s of processor time for 100 000 tiles of 16 x 8 x 16 with AVX-512 (examples/bench/tensorcore.py, part speed).
// Source: the "T-FDPA" of MMA-Sim (arXiv:2511.10909); the arrangement is ours.
#include "tensorcore_steps.h"

#include <cstring>

#include "vector_bytes.h"

namespace jaxmd {
namespace JAXMD_ISA {
namespace {

constexpr int kLanes = kBytes / 4;
static_assert(kStepLanes % kLanes == 0);
typedef int32_t Int __attribute__((vector_size(kBytes)));
typedef uint32_t Word __attribute__((vector_size(kBytes)));
typedef float Float __attribute__((vector_size(kBytes)));

constexpr int32_t kNowhere = -4096;  // the exponent of a zero: below every sum of two exponents
constexpr int32_t kNan = 1, kInfinite = 2, kZero = 4;

inline Int load(const int32_t* p) {
  Int v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline Int broadcast(int32_t x) { return Int{} + x; }
inline Int larger(Int x, Int y) { return x > y ? x : y; }
inline Int smaller(Int x, Int y) { return x < y ? x : y; }
inline bool any(Int x) {
  int32_t lanes[kLanes], found = 0;
  std::memcpy(lanes, &x, sizeof x);
  for (int i = 0; i < kLanes; ++i) found |= lanes[i];
  return found != 0;
}

// A number in parts: magnitude, exponent (kNowhere for zeros), 0 or -1 for the sign, and kNan, kInfinite, kZero.
struct Parts {
  Int magnitude, exponent, sign, kind;
};

inline Parts decode(Int bits, const StepFormat& f) {
  const Word x = reinterpret_cast<Word>(bits) >> f.unused;
  const int fraction_mask = (1 << f.mantissa_bits) - 1, top = (1 << f.exponent_bits) - 1;
  const Int fraction = reinterpret_cast<Int>(x & static_cast<uint32_t>(fraction_mask));
  const Int field = reinterpret_cast<Int>((x >> f.mantissa_bits) & static_cast<uint32_t>(top));
  const Int last = field == top, none = Int{};
  const Int infinite = f.specials == 2 ? (last & (fraction == 0)) : none;
  const Int nan = f.specials == 2   ? (last & (fraction != 0))
                  : f.specials == 1 ? (last & (fraction == fraction_mask))
                                    : none;
  const Int normal = (field != 0) & (1 << f.mantissa_bits);
  Parts p;
  p.magnitude = (fraction | normal) & ~(infinite | nan);
  p.exponent = p.magnitude == 0 ? broadcast(kNowhere) : larger(field, broadcast(1)) - f.bias();
  p.sign = -reinterpret_cast<Int>((x >> (f.exponent_bits + f.mantissa_bits)) & 1u);
  p.kind = (nan & kNan) | (infinite & kInfinite) | ((p.magnitude == 0) & ~(infinite | nan) & kZero);
  return p;
}

// Where the parts of one operand lie: [l][count], or [count] for one row of a.
struct Table {
  int32_t *magnitude, *exponent, *sign, *kind;

  Table(int32_t* at, int64_t size) : magnitude(at), exponent(at + size), sign(at + 2 * size), kind(at + 3 * size) {}
  void store(int64_t i, const Parts& p) const {
    std::memcpy(magnitude + i, &p.magnitude, kBytes);
    std::memcpy(exponent + i, &p.exponent, kBytes);
    std::memcpy(sign + i, &p.sign, kBytes);
    std::memcpy(kind + i, &p.kind, kBytes);
  }
};

// `count` words into the table at `at`, padded with zeros; whether an Inf or NaN is among them.
bool decode_row(const uint32_t* from, int64_t count, const StepFormat& f, int shift, const Table& table, int64_t at) {
  Int special = Int{};
  for (int64_t j = 0; j < count; j += kLanes) {
    Int bits = Int{};
    std::memcpy(&bits, from + j, 4 * (count - j < kLanes ? count - j : kLanes));
    Parts p = decode(bits, f);
    p.magnitude <<= shift;
    special |= p.kind & (kNan | kInfinite);
    table.store(at + j, p);
  }
  return any(special);
}

// floor(log2 x), 0 for x = 0: the exponent that a float has; without the bit below the top it cannot round up to the next.
inline Int floor_log2(Word x) {
  const Word top = (x & ~(x >> 1)) >> 1;
  const Float f = __builtin_convertvector(reinterpret_cast<Int>(top), Float);
  return larger((reinterpret_cast<Int>(f) >> 23) - 126, Int{});
}

// Bits of ±size·2^bottom, rounded as the rule says; a zero has no sign.
inline Int round_sums(Word size, Int negative, Int bottom, const StepRule& r) {
  const int width = r.half ? 16 : 32, mantissa = r.half ? 10 : 23, low = r.half ? -14 : -126, high = r.half ? 15 : 127;
  const int32_t infinity = r.half ? 0x7c00 : 0x7f800000, p = r.output_bits;
  const Int exponent = larger(bottom + floor_log2(size), broadcast(low)), shift = exponent - p - bottom;
  const Word left = reinterpret_cast<Word>(larger(-shift, Int{}));
  const Word right = reinterpret_cast<Word>(smaller(larger(shift, Int{}), broadcast(31)));
  Word kept = (size << left) >> right;
  if (r.half) {
    const Word rest = size - ((size >> right) << right), half = ((Word{} + 1u) << right) >> 1;
    const Int up = reinterpret_cast<Int>(rest > half) |
                   (reinterpret_cast<Int>(rest == half) & reinterpret_cast<Int>(half != 0) & -reinterpret_cast<Int>(kept & 1u));
    kept -= reinterpret_cast<Word>(up);
  }
  const Word fields = reinterpret_cast<Word>(smaller(exponent - low, broadcast(high - low + 1))) << p;
  Int bits = reinterpret_cast<Int>((fields + kept) << (mantissa - p));
  bits = smaller(bits & INT32_MAX, broadcast(infinity));
  bits = exponent > high ? broadcast(infinity) : bits;
  bits &= reinterpret_cast<Int>(size != 0);
  const int32_t sign = static_cast<int32_t>(1u << (width - 1));
  return bits | (negative & (bits != 0) & sign);
}

// Lanes that are Inf (+1, -1) or NaN (2) instead of a finite sum; 0 for the others.
inline Int special_sums(const Table& a, const Table& b, int64_t stride, int64_t l, int length, const Parts& c) {
  Int nan = (c.kind & kNan) != 0, plus = ((c.kind & kInfinite) != 0) & ~c.sign,
      minus = ((c.kind & kInfinite) != 0) & c.sign;
  for (int64_t i = l; i < l + length; ++i) {
    const Int kind_b = load(b.kind + i * stride), kind_a = broadcast(a.kind[i]);
    const Int sign = broadcast(a.sign[i]) ^ load(b.sign + i * stride), either = kind_a | kind_b;
    const Int infinite = (either & kInfinite) != 0;
    nan |= ((either & kNan) != 0) | (infinite & ((either & kZero) != 0));
    plus |= infinite & ~sign;
    minus |= infinite & sign;
  }
  nan |= plus & minus;
  return (nan & 2) | (~nan & ((plus & 1) | (minus & -1)));
}

}  // namespace

extern StepKernel step_panel;
void step_panel(const StepRule& r, const StepTask& task, const StepPanel& panel, int32_t* scratch) {
  const int64_t stride = step_padded(panel.columns);
  const StepFormat format_c = r.half ? StepFormat{5, 10, 2, 0} : StepFormat{8, 23, 2, 0};
  const Table b(scratch, task.k * stride);
  const Table a(scratch + 4 * task.k * stride, step_padded(task.k));
  bool special_b = false;
  for (int64_t l = 0; l < task.k; ++l) {
    special_b |= decode_row(task.b + l * task.n + panel.column, panel.columns, r.b, 0, b, l * stride);
  }
  const int scale = r.fraction_bits - r.a.mantissa_bits - r.b.mantissa_bits;  // of products, not negative
  const int scale_c = r.fraction_bits - format_c.mantissa_bits;
  const int width = r.half ? 16 : 32;
  for (int64_t i = panel.row; i < panel.row + panel.rows; ++i) {
    const bool special_a = decode_row(task.a + i * task.k, task.k, r.a, scale, a, 0);
    for (int64_t j = 0; j < panel.columns; j += kLanes) {
      const int64_t count = panel.columns - j < kLanes ? panel.columns - j : kLanes, at = i * task.n + panel.column + j;
      Int bits = Int{};
      std::memcpy(&bits, task.c + at, 4 * count);
      for (int64_t l = 0; l < task.k; l += r.length) {
        const Parts c = decode(bits, format_c);
        Int e_max = larger(c.exponent, broadcast(r.zero_exponent));
        for (int64_t s = l; s < l + r.length; ++s) e_max = larger(e_max, a.exponent[s] + load(b.exponent + s * stride + j));
        const Int below = smaller(e_max - c.exponent - (scale_c < 0 ? scale_c : 0), broadcast(31));
        const Word first = (reinterpret_cast<Word>(c.magnitude) << (scale_c > 0 ? scale_c : 0)) >> reinterpret_cast<Word>(below);
        Word total = first, minus = first & reinterpret_cast<Word>(c.sign);
        for (int64_t s = l; s < l + r.length; ++s) {
          const Int right = smaller(e_max - (a.exponent[s] + load(b.exponent + s * stride + j)), broadcast(31));
          const Int product = a.magnitude[s] * load(b.magnitude + s * stride + j);
          const Word term = reinterpret_cast<Word>(product) >> reinterpret_cast<Word>(right);
          total += term;
          minus += term & reinterpret_cast<Word>(a.sign[s] ^ load(b.sign + s * stride + j));
        }
        const Word plus = total - minus;
        const Int negative = reinterpret_cast<Int>(minus > plus);
        const Word size = minus > plus ? minus - plus : plus - minus;
        bits = round_sums(size, negative, e_max - r.fraction_bits, r);
        if (special_a || special_b || any(c.kind & (kNan | kInfinite))) {
          Table here = b;
          here.kind += j;
          here.sign += j;
          const Int special = special_sums(a, here, stride, l, r.length, c);
          const int32_t infinity = r.half ? 0x7c00 : 0x7f800000, sign = static_cast<int32_t>(1u << (width - 1));
          bits = special == 2 ? broadcast(r.half ? 0x7fff : 0x7fffffff) : bits;
          bits = special == 1 ? broadcast(infinity) : bits;
          bits = special == -1 ? broadcast(infinity | sign) : bits;
        }
      }
      std::memcpy(task.d + at, &bits, 4 * count);
    }
  }
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
