// Engine "direct" on the CPU for more than four limbs: window.h with words of 64 bits.
//
// Tiling: a task makes 16 × 16 entries. It finds the exponents of all its operands, then T of every entry, and then for
//   16 inner indices at a time turns 16 × 16 entries of A and of B into integers, each used 16 times.
// Cost: about 60 ns a multiply-add for L = 8 and 200 ns for L = 16 on one core.
// Source, bound: window.h.
#include "window_cpu.h"

#include <algorithm>
#include <climits>
#include <vector>

#include "exact.h"
#include "window.h"

namespace jaxmd {
namespace {

using namespace scalar;
using Wide = unsigned __int128;

constexpr int kMaxWords = window_words(kMaxProductLimbs, 64);
constexpr int64_t kDepth = 16;
constexpr int kZero = INT_MIN / 4;  // the exponent of 0

// The least e with |x| < 2^e, from the bits.
int exponent_of(double x) {
  const Factor f = unpack(x);
  return f.mantissa == 0 ? kZero : f.exponent - 1011 - leading_zeros(f.mantissa);
}

// |x| of an entry as an integer, the point after the last word: x = ±Σ word[i]·2^(64i − 64·words + exponent).
struct Entry {
  uint64_t word[kMaxWords];
  int exponent;
  bool negative;
};

// word ± m·2^position, m of 53 bits; what lies below bit 0 is dropped.
void add_shifted(uint64_t* word, int words, uint64_t m, int position, bool minus) {
  if (position < 0) {
    m = position > -64 ? m >> -position : 0;
    position = 0;
  }
  int i = position >> 6;
  if (m == 0 || i >= words) return;
  Wide rest = static_cast<Wide>(m) << (position & 63);
  bool carry = false;
  for (; i < words && (rest != 0 || carry); ++i, rest >>= 64) {
    const uint64_t low = static_cast<uint64_t>(rest), old = word[i];
    const uint64_t with = minus ? old - low : old + low;
    const bool first = minus ? with > old : with < old;
    word[i] = minus ? with - carry : with + carry;
    carry = first || (carry && word[i] == (minus ? ~uint64_t{0} : 0));
  }
}

template <class Load>
void to_integer(Load load, int limbs, int exponent, int words, Entry* entry) {
  std::fill(entry->word, entry->word + words, 0);
  entry->exponent = exponent;
  entry->negative = load(0) < 0;
  if (exponent == kZero) return;
  for (int i = 0; i < limbs; ++i) {
    const Factor f = unpack(load(i));
    const int position = f.exponent - 1075 - exponent + 64 * words;
    add_shifted(entry->word, words, f.mantissa, position, (f.sign != 0) != entry->negative);
  }
}

// sum ± ⌊x·y·2^(−64·words − shift)⌋; sum has words + 1 words. kWords is the number of words, or 0 where it comes as
// `count`: with the number known, loops unroll and the product stays in registers.
template <int kWords>
void multiply_add(uint64_t* sum, const Entry& x, const Entry& y, int count, int shift) {
  const int words = kWords == 0 ? count : kWords;
  if (shift >= 64 * words) return;
  uint64_t r[2 * kMaxWords];
  std::fill(r + words - 2, r + 2 * words, 0);
#pragma GCC unroll 8
  for (int i = 0; i < words; ++i) {
    uint64_t carry = 0;
#pragma GCC unroll 8
    for (int j = std::max(0, words - 2 - i); j < words; ++j) {
      const Wide t = static_cast<Wide>(x.word[i]) * y.word[j] + r[i + j] + carry;
      r[i + j] = static_cast<uint64_t>(t);
      carry = static_cast<uint64_t>(t >> 64);
    }
    r[i + words] = carry;
  }
  const uint64_t mask = x.negative != y.negative ? ~uint64_t{0} : 0;
  const int from = words + (shift >> 6), bits = shift & 63;
  uint64_t carry = mask & 1;
  for (int i = 0; i <= words; ++i) {
    const int at = from + i;
    uint64_t v = at < 2 * words ? r[at] >> bits : 0;
    if (bits != 0 && at + 1 < 2 * words) v |= r[at + 1] << (64 - bits);
    const Wide t = static_cast<Wide>(sum[i]) + (v ^ mask) + carry;
    sum[i] = static_cast<uint64_t>(t);
    carry = static_cast<uint64_t>(t >> 64);
  }
}

// The fixed sizes are those of five to eight limbs.
using MultiplyAdd = void(uint64_t* sum, const Entry& x, const Entry& y, int words, int shift);
MultiplyAdd* multiply_add_for(int words) {
  switch (words) {
    case 5: return multiply_add<5>;
    case 6: return multiply_add<6>;
    case 7: return multiply_add<7>;
    default: return multiply_add<0>;
  }
}

}  // namespace

void window_tile(const DirectTask& task, int64_t batch, int64_t row, int64_t column) {
  const ProductShape& s = task.shape;
  const int words = window_words(task.c.count, 64);
  MultiplyAdd* const add = multiply_add_for(words);
  const int64_t rows = std::min(kWindowTile, s.m - row), columns = std::min(kWindowTile, s.n - column);
  const int64_t a0 = (batch * s.m + row) * s.k, b0 = batch * s.k * s.n + column;
  std::vector<int> e(s.k * kWindowTile), f(s.k * kWindowTile);  // [l][row], [l][column]
  for (int64_t l = 0; l < s.k; ++l) {
    for (int64_t i = 0; i < rows; ++i) e[l * kWindowTile + i] = exponent_of(task.a.limb[0][a0 + i * s.k + l]);
    for (int64_t j = 0; j < columns; ++j) f[l * kWindowTile + j] = exponent_of(task.b.limb[0][b0 + l * s.n + j]);
  }
  int top[kWindowTile][kWindowTile];
  std::fill(top[0], top[0] + kWindowTile * kWindowTile, 2 * kZero);
  for (int64_t l = 0; l < s.k; ++l) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        top[i][j] = std::max(top[i][j], e[l * kWindowTile + i] + f[l * kWindowTile + j]);
      }
    }
  }
  std::vector<Entry> x(kDepth * kWindowTile), y(kDepth * kWindowTile);
  std::vector<uint64_t> sums(kWindowTile * kWindowTile * (words + 1), 0);
  for (int64_t l0 = 0; l0 < s.k; l0 += kDepth) {
    const int64_t depth = std::min(kDepth, s.k - l0);
    for (int64_t l = 0; l < depth; ++l) {
      const int *const el = &e[(l0 + l) * kWindowTile], *const fl = &f[(l0 + l) * kWindowTile];
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t at = a0 + i * s.k + l0 + l;
        to_integer([&](int g) { return task.a.limb[g][at]; }, task.a.count, el[i], words, &x[l * kWindowTile + i]);
      }
      for (int64_t j = 0; j < columns; ++j) {
        const int64_t at = b0 + (l0 + l) * s.n + j;
        to_integer([&](int g) { return task.b.limb[g][at]; }, task.b.count, fl[j], words, &y[l * kWindowTile + j]);
      }
    }
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        uint64_t* const sum = &sums[(i * kWindowTile + j) * (words + 1)];
        for (int64_t l = 0; l < depth; ++l) {
          const Entry &xl = x[l * kWindowTile + i], &yl = y[l * kWindowTile + j];
          add(sum, xl, yl, words, top[i][j] - xl.exponent - yl.exponent);
        }
      }
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const uint64_t* const sum = &sums[(i * kWindowTile + j) * (words + 1)];
      const int64_t at = (batch * s.m + row + i) * s.n + column + j;
      const bool negative = sum[words] >> 63 != 0;
      const auto digit = [&](int d) { return static_cast<uint32_t>(sum[d >> 1] >> 32 * (d & 1)); };
      const bool empty = top[i][j] < kZero / 2;  // no term but zeros; its exponent means nothing
      round_to_limbs(digit, 2 * (words + 1), empty ? 0 : top[i][j] - 64 * words, negative, negative, task.c.count,
                     [&](int g, double c) { task.c.limb[g][at] = c; });
    }
  }
}

}  // namespace jaxmd
