// The first half of the encoding: limbs of a chunk -> digits of X, 15 bits each, most significant first.
//
// Order in scratch: groups of kBytes elements; element 8 i + v of a group is in lane i of its v-th vector of
//   doubles, v = 0 ... 7. Then the digits of elements v and v + 4 interleave to vectors of 32-bit lanes in which lane i
//   holds element 4 i + v, v = 0 ... 3, and residues in those interleave to bytes in the order of memory.
// A digit is cut off a double by adding 1.5 2^(52 + position): the sum's low bits are the digit, and what the sum rounds
//   away is the rest. Limb by limb, so that round(limb 2^(w - scale)) is the definition's.
// Exact: scaling is by powers of two, into |x| < 2^(w/2); what underflows is below half a unit.
// Digits: |digit| <= 2^14 for one limb; where two limbs meet in a digit, the second is at most half a unit of the last
//   bit of the first, so 1.5 2^14 in all.
#pragma once

#include <cmath>

#include "residue_encode.h"
#include "residue_encode_vector.h"

namespace jaxmd {
namespace JAXMD_ISA {
namespace {

// Where element number `at` of the scratch is; the 8 elements from a multiple of 8 on are kDoubles apart.
inline int64_t place(int64_t at) {
  const int64_t in_group = at % kBytes;
  return at - in_group + in_group % 8 * kDoubles + in_group / 8;
}

inline int64_t clamped(int64_t x, int64_t bound) { return x < -bound ? -bound : x > bound ? bound : x; }

// The power of two that takes each element of row i to the grid. `same`: the shifts are all equal.
inline void gather_powers(const ResidueEncodeTask& task, const ResidueEncodeChunk& chunk, int64_t i, int64_t count,
                          bool same, int32_t* power) {
  const int64_t at = chunk.batch * task.rows + chunk.row + i;
  const int32_t raise = task.bits - task.bits / 2 - static_cast<int32_t>(clamped(task.exponent[at], 1 << 20));
  const int32_t* shift = task.shift + chunk.batch * task.k + chunk.first;
  for (int64_t l0 = 0; l0 < count; l0 += 8) {
    const int64_t here = count - l0 < 8 ? count - l0 : 8;
    int32_t e[8] = {};
    std::memcpy(e, shift + l0, here * sizeof(int32_t));
    for (int v = 0; v < 8; ++v) {
      const int32_t bounded = e[v] < -(1 << 20) ? -(1 << 20) : e[v] > 1 << 20 ? 1 << 20 : e[v];
      const int32_t sum = raise - bounded;
      e[v] = sum < -2000 ? -2000 : sum > 2000 ? 2000 : sum;
    }
    if (same) {  // and rows are whole groups, so the order does not matter
      int32_t* row = power + i * chunk.pitch;
      for (int64_t l = 0; l < chunk.pitch; ++l) row[l] = e[0];
      return;
    }
    int32_t* element = power + place(i * chunk.pitch + l0);
    for (int v = 0; v < 8; ++v) element[v * kDoubles] = e[v];
  }
}

// A whole group of one row, which lies in memory in order.
inline void gather_group(const double* x, double* to) {
  for (int h = 0; h < 8; h += kDoubles) {
    F64 r[kDoubles];
    for (int a = 0; a < kDoubles; ++a) r[a] = load_vector<F64>(x + 8 * a + h);
    transpose(r);
    for (int v = 0; v < kDoubles; ++v) store_vector(to + (h + v) * kDoubles, r[v]);
  }
}

// Whole groups of `columns` rows, a multiple of kDoubles, of an operand that is transposed in memory.
inline void gather_columns(const double* x, int64_t stride, int64_t columns, double* to, int64_t pitch,
                           int64_t prefetch) {
  for (int v = 0; v < 8; ++v) {
    for (int a = 0; a < kDoubles; ++a) __builtin_prefetch(x + (8 * a + v) * stride + prefetch, 0, 2);
    for (int64_t i = 0; i < columns; i += kDoubles) {
      F64 r[kDoubles];
      for (int a = 0; a < kDoubles; ++a) r[a] = load_vector<F64>(x + (8 * a + v) * stride + i);
      transpose(r);
      for (int c = 0; c < kDoubles; ++c) store_vector(to + (i + c) * pitch + v * kDoubles, r[c]);
    }
  }
}

// Limbs of the chunk, and for each element the power of two that takes it to the grid.
inline void gather(const ResidueEncodeTask& task, const ResidueEncodeChunk& chunk, const ResidueEncodeScratch& to) {
  const int64_t left = task.k - chunk.first, count = left < chunk.length ? left : chunk.length;
  if (count < chunk.pitch || chunk.count * chunk.pitch < to.elements) {  // there is padding
    std::memset(to.limbs, 0, task.x.count * to.elements * sizeof(double));
    std::memset(to.power, 0, to.elements * sizeof(int32_t));
  }
  const bool aligned = chunk.pitch % kBytes == 0;
  const int32_t* shift = task.shift + chunk.batch * task.k + chunk.first;
  int32_t unlike = 0;
  for (int64_t l = 0; l < count; ++l) unlike |= shift[l] ^ shift[0];
  for (int64_t i = 0; i < chunk.count; ++i) gather_powers(task, chunk, i, count, aligned && unlike == 0, to.power);
  const int64_t row_step = task.transposed ? 1 : task.k, step = task.transposed ? task.rows : 1;
  const int64_t start = chunk.batch * task.rows * task.k + chunk.row * row_step + chunk.first * step;
  for (int j = 0; j < task.x.count; ++j) {
    const double* x = task.x.limb[j] + start;
    double* limbs = to.limbs + j * to.elements;
    int64_t done = 0;  // rows of which whole groups are taken by columns
    if (task.transposed && aligned) {
      done = chunk.count / kDoubles * kDoubles;
      for (int64_t l = 0; l + kBytes <= count; l += kBytes) {
        const int64_t prefetch = l + 2 * kBytes <= count ? kBytes * step : 0;
        gather_columns(x + l * step, step, done, limbs + l, chunk.pitch, prefetch);
      }
    }
    for (int64_t i = 0; i < chunk.count; ++i) {
      const double* row = x + i * row_step;
      int64_t l = i < done ? count / kBytes * kBytes : 0;
      while (l < count) {
        const int64_t at = i * chunk.pitch + l;
        if (!task.transposed && at % kBytes == 0 && l + kBytes <= count) {
          gather_group(row + l, limbs + at);
          l += kBytes;
          continue;
        }
        double* element = limbs + place(at);
        for (int v = 0; v < 8 && l < count; ++v, ++l) element[v * kDoubles] = row[l * step];
      }
    }
  }
}

struct Scaling {
  F64 first[8], second[8];
};

inline Scaling scaling(const int32_t* power) {
  Scaling scale;
  for (int v = 0; v < 8; ++v) {
    const HalfI32 e = load_vector<HalfI32>(power + v * kDoubles), half = e >> 1;
    scale.first[v] = (F64)((__builtin_convertvector(half, I64) + 1023) << 52);
    scale.second[v] = (F64)((__builtin_convertvector(e - half, I64) + 1023) << 52);
  }
  return scale;
}

inline bool any_lane(I64 mask) {
  int64_t any = 0;
  for (int i = 0; i < kDoubles; ++i) any |= mask[i];
  return any != 0;
}

// The first digit that a limb of size below 2^(exponent + 1) reaches; digits units or more when it reaches none.
inline int first_digit(const F64* x, int unit, int digits) {
  F64 largest = {};
  for (int v = 0; v < 8; ++v) {
    const F64 size = (F64)((I64)x[v] & INT64_MAX);
    largest = size > largest ? size : largest;
  }
  double most = 0;
  for (int i = 0; i < kDoubles; ++i) most = largest[i] > most ? largest[i] : most;
  uint64_t bits;
  std::memcpy(&bits, &most, sizeof bits);
  const int above = static_cast<int>(bits >> 52) - 1022 - unit;
  if (above < 0) return digits;
  const int first = digits - 1 - above / kResidueDigit;
  return first < 0 ? 0 : first;
}

// sums[digit][v] += the digits of one limb, in the low 16 bits of every lane.
inline void add_digits(F64* x, int unit, int digits, const double* cut, int64_t* sums) {
  int s = first_digit(x, unit, digits);
  if (s >= digits) return;
  F64 rest[8];
  for (int v = 0; v < 8; ++v) rest[v] = x[v];
  for (; s < digits - 1; ++s) {
    int64_t* sum = sums + s * 8 * kDoubles;
    I64 left = {};
    for (int v = 0; v < 8; ++v) {
      const F64 t = rest[v] + cut[s];
      store_vector(sum + v * kDoubles, load_vector<U64>(sum + v * kDoubles) + (U64)t);
      rest[v] -= t - cut[s];
      left |= rest[v] != 0.0;
    }
    if (!any_lane(left)) return;
  }
  int64_t* sum = sums + s * 8 * kDoubles;
  const I64 half = (I64)(F64{} + std::ldexp(0.5, unit));
  for (int v = 0; v < 8; ++v) {
    const F64 t = rest[v] + cut[s];
    rest[v] -= t - cut[s];
    // to nearest even: where half a unit of x's own sign is left, away from zero is one further
    const I64 tie = (I64)rest[v] == (half | ((I64)x[v] & INT64_MIN));
    const I64 away = x[v] < 0.0 ? tie : -tie;
    store_vector(sum + v * kDoubles, load_vector<U64>(sum + v * kDoubles) + (U64)t + (U64)away);
  }
}

// Digits 2t and 2t + 1 of a group as int16 pairs: digits[t][4 vectors].
inline void pack_digits(const int64_t* sums, int digit_pairs, int32_t* digits) {
  for (int t = 0; t < digit_pairs; ++t) {
    const int64_t* high = sums + 2 * t * 8 * kDoubles;
    const int64_t* low = high + 8 * kDoubles;
    for (int v = 0; v < 4; ++v) {
      const I64 even = (I64)low_halves(load_vector<I32>(high + v * kDoubles), load_vector<I32>(low + v * kDoubles));
      const I64 odd =
          (I64)low_halves(load_vector<I32>(high + (v + 4) * kDoubles), load_vector<I32>(low + (v + 4) * kDoubles));
      store_vector(digits + (4 * t + v) * 2 * kDoubles, (even & 0xffffffff) | (odd << 32));
    }
  }
}

// to.digits[group][pair][4 vectors] of all elements of the chunk.
inline void chunk_digits(const ResidueEncodeTask& task, const ResidueEncodeScratch& to) {
  const int digits = (task.bits + kResidueDigit) / kResidueDigit, unit = -(task.bits / 2);  // w + 1 bits, rounded up
  double cut[kMaxResidueDigits];
  for (int s = 0; s < digits; ++s) cut[s] = std::ldexp(1.5, 52 + unit + kResidueDigit * (digits - 1 - s));
  for (int64_t at = 0; at < to.elements; at += kBytes) {
    const Scaling scale = scaling(to.power + at);
    std::memset(to.sums, 0, 2 * task.digit_pairs * kBytes * sizeof(int64_t));
    for (int j = 0; j < task.x.count; ++j) {
      const double* limb = to.limbs + j * to.elements + at;
      F64 x[8];
      for (int v = 0; v < 8; ++v) {
        const F64 y = load_vector<F64>(limb + v * kDoubles);
        const I64 finite = (y - y) == 0.0;
        x[v] = (F64)((I64)y & finite) * scale.first[v] * scale.second[v];
      }
      add_digits(x, unit, digits, cut, to.sums);
    }
    pack_digits(to.sums, task.digit_pairs, to.digits + at * task.digit_pairs);
  }
}

}  // namespace
}  // namespace JAXMD_ISA
}  // namespace jaxmd
