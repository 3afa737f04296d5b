// One entry of an exact product by one warp: C_ij = canonical limbs of Σ_l A_il·B_lj.
//
// Shared memory: a fixed-point number for each lane, word [134][lane 32], 34 KB: no bank conflicts and no atomics.
// Lane t takes the terms l ≡ t mod 32; then it sums the rows i ≡ t mod 32, and lane 0 settles the carries and rounds.
// Exact: exact.h; a lane adds at most 2^25 products between two carry passes, so a row sum stays below 2^62.
// Cost: about k·Na·Nb/32 steps of some 100 cycles and 5 µs for rounding; terms with a zero in them only one look.
#pragma once

#include "exact.h"
#include "product_shape.h"

namespace jaxmd {
namespace cuda {

// Factors, and the entries that are replaced.
struct ExactProduct {
  ProductShape shape;
  LimbPointers<const double> a, b;
  LimbPointers<double> c;
};

constexpr int kLanes = 32;
constexpr unsigned kAll = 0xffffffffu;
constexpr int kSharedBytes = kExactWords * kLanes * static_cast<int>(sizeof(int64_t));
static_assert(kSharedBytes <= 48 * 1024, "more must be asked for");
constexpr int64_t kLaneRun = int64_t{1} << 25;

// Which of the lane's next kLook terms, l, l + 32, …, have nonzero limbs in both factors; whether one is inf or nan.
constexpr int kLook = 8;
__device__ inline unsigned terms_present(const ExactProduct& job, int64_t row, int64_t column, int64_t l,
                                         bool* special) {
  unsigned present[2] = {};
  for (int side = 0; side < 2; ++side) {
    const LimbPointers<const double>& x = side == 0 ? job.a : job.b;
    const int64_t at = side == 0 ? row : column, step = side == 0 ? 1 : job.shape.n;
    for (int i = 0; i < x.count; ++i) {
      double value[kLook];
#pragma unroll
      for (int t = 0; t < kLook; ++t) {
        const int64_t term = l + t * kLanes;
        value[t] = term < job.shape.k ? __ldg(x.limb[i] + at + term * step) : 0.0;
      }
#pragma unroll
      for (int t = 0; t < kLook; ++t) {
        present[side] |= static_cast<unsigned>(value[t] != 0.0) << t;
        *special |= !is_finite(value[t]);
      }
    }
  }
  return present[0] & present[1];
}

// Adds lane's share of the dot product; returns whether a limb was inf or nan, and the range of words touched.
__device__ inline bool accumulate(const ExactProduct& job, int64_t row, int64_t column, int lane, int64_t* word,
                                  int* first, int* last) {
  const int64_t run = kLaneRun / (job.a.count * job.b.count);
  int64_t steps = 0;
  bool special = false;
  for (int64_t base = lane; base < job.shape.k && !special; base += kLook * kLanes) {
    for (unsigned terms = terms_present(job, row, column, base, &special); terms != 0 && !special; terms &= terms - 1) {
      const int64_t l = base + (__ffs(terms) - 1) * kLanes;
      if (++steps % run == 0) {
        settle(word, kLanes);
        *last = kExactWords - 1;
      }
      for (int i = 0; i < job.a.count; ++i) {
        const Factor a = unpack(job.a.limb[i][row + l]);
        for (int g = 0; g < job.b.count; ++g) {
          const Factor b = unpack(job.b.limb[g][column + l * job.shape.n]);
          if (a.mantissa == 0 || b.mantissa == 0) continue;
          add_product(word, kLanes, a, b);
          const int at = first_word(a, b);
          *first = min(*first, at);
          *last = max(*last, at + 4);
        }
      }
    }
  }
  return special;
}

__device__ inline double special_entry(const ExactProduct& job, int64_t row, int64_t column, int lane, int64_t* word) {
  int seen = kNone;
  for (int64_t l = lane; l < job.shape.k; l += kLanes) {
    const auto load_a = [&](int i) { return job.a.limb[i][row + l]; };
    const auto load_b = [&](int g) { return job.b.limb[g][column + l * job.shape.n]; };
    seen |= special_term(classify(load_a, job.a.count, word, kLanes), classify(load_b, job.b.count, word, kLanes));
  }
  return special_value(__reduce_or_sync(kAll, static_cast<unsigned>(seen)));
}

// One entry by one warp. All words are zero before and after.
__device__ inline void exact_entry(const ExactProduct& job, int64_t entry, int lane, int64_t* shared) {
  const ProductShape& s = job.shape;
  const int64_t batch = entry / (s.m * s.n), i = entry / s.n, j = entry % s.n;  // i counts rows over the batch
  const int64_t row = i * s.k, column = batch * s.k * s.n + j;
  int64_t* const word = shared + lane;
  int first = kExactWords, last = -1;
  if (__any_sync(kAll, accumulate(job, row, column, lane, word, &first, &last))) {
    const double value = special_entry(job, row, column, lane, word);
    for (int t = 0; t < kExactWords; ++t) word[t * kLanes] = 0;
    for (int g = lane; g < job.c.count; g += kLanes) job.c.limb[g][entry] = g == 0 ? value : 0.0;
    __syncwarp();
    return;
  }
  first = __reduce_min_sync(kAll, first);
  last = min(__reduce_max_sync(kAll, last) + 2, kExactWords - 1);  // the carry of 2^62 reaches two words on
  __syncwarp();
  for (int t = first + lane; t <= last; t += kLanes) {
    int64_t sum = 0;
    for (int q = 0; q < kLanes; ++q) sum += shared[t * kLanes + ((q + lane) & 31)];
    shared[t * kLanes] = sum;
  }
  __syncwarp();
  if (lane == 0) {
    settle(shared, kLanes, first);
    const bool negative = shared[(kExactWords - 1) * kLanes] < 0;
    round_to_limbs(ExactDigits{shared, kLanes}, kExactWords, kExactLow, negative, negative, job.c.count,
                   [&](int g, double x) { job.c.limb[g][entry] = x; });
    // A negative sum has its sign in every word above.
    for (int t = last + 1; t < kExactWords; ++t) shared[t * kLanes] = 0;
  }
  __syncwarp();
  for (int t = first; t <= last; ++t) word[t * kLanes] = 0;
  __syncwarp();
}

}  // namespace cuda
}  // namespace jaxmd
