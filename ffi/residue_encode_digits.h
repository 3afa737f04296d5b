// The first half of the encoding: limbs of a chunk -> digits of X, 15 bits each, most significant first.
//
// Order in scratch: groups of kVectorBytes elements; element 8 i + v of a group is in lane i of its v-th vector of
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
  const int64_t in_group = at % kVectorBytes;
  return at - in_group + in_group % 8 * kDoubles + in_group / 8;
}

inline int32_t clamped_power(int64_t power) {
  return static_cast<int32_t>(power < -2000 ? -2000 : power > 2000 ? 2000 : power);
}

// Limbs of the chunk, and for each element the power of two that takes it to the grid.
inline void gather(const ResidueEncodeTask& task, const ResidueEncodeChunk& chunk, const ResidueEncodeScratch& to) {
  const int64_t end = chunk.first + chunk.length < task.k ? chunk.first + chunk.length : task.k;
  if (end - chunk.first < chunk.pitch || chunk.count * chunk.pitch < to.elements) {  // there is padding
    std::memset(to.limbs, 0, task.x.count * to.elements * sizeof(double));
    std::memset(to.power, 0, to.elements * sizeof(int32_t));
  }
  const int64_t raise = task.bits - task.bits / 2;
  const int32_t* shift = task.shift + chunk.batch * task.k;
  const int32_t* exponent = task.exponent + chunk.batch * task.rows + chunk.row;
  for (int64_t l0 = chunk.first; l0 < end; l0 += 8) {
    const int64_t here = end - l0 < 8 ? end - l0 : 8;
    for (int64_t i = 0; i < chunk.count; ++i) {
      int32_t* power = to.power + place(i * chunk.pitch + l0 - chunk.first);
      for (int64_t v = 0; v < here; ++v) {
        power[v * kDoubles] = clamped_power(raise - exponent[i] - static_cast<int64_t>(shift[l0 + v]));
      }
    }
  }
  const int64_t entry = chunk.batch * task.rows * task.k;
  for (int j = 0; j < task.x.count; ++j) {
    double* limbs = to.limbs + j * to.elements;
    if (!task.transposed) {
      for (int64_t i = 0; i < chunk.count; ++i) {
        const double* x = task.x.limb[j] + entry + (chunk.row + i) * task.k;
        for (int64_t l0 = chunk.first; l0 < end; l0 += 8) {
          const int64_t here = end - l0 < 8 ? end - l0 : 8;
          double* element = limbs + place(i * chunk.pitch + l0 - chunk.first);
          if (here == 8) {
            for (int v = 0; v < 8; ++v) element[v * kDoubles] = x[l0 + v];
          } else {
            for (int64_t v = 0; v < here; ++v) element[v * kDoubles] = x[l0 + v];
          }
        }
      }
    } else {
      const double* x = task.x.limb[j] + entry + chunk.row;
      for (int64_t l0 = chunk.first; l0 < end; l0 += 8) {
        const int64_t here = end - l0 < 8 ? end - l0 : 8;
        for (int64_t i = 0; i < chunk.count; ++i) {
          double* element = limbs + place(i * chunk.pitch + l0 - chunk.first);
          for (int64_t v = 0; v < here; ++v) element[v * kDoubles] = x[(l0 + v) * task.rows + i];
        }
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
      store_vector(sum + v * kDoubles, load_vector<I64>(sum + v * kDoubles) + (I64)t);
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
    store_vector(sum + v * kDoubles, load_vector<I64>(sum + v * kDoubles) + (I64)t + away);
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
  for (int64_t at = 0; at < to.elements; at += kVectorBytes) {
    const Scaling scale = scaling(to.power + at);
    std::memset(to.sums, 0, 2 * task.digit_pairs * kVectorBytes * sizeof(int64_t));
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
