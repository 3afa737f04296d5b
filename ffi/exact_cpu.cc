// jaxmd_exact_matmul on the CPU: C_ij = canonical limbs of Σ_l A_il·B_lj, exact, for the entries with flag_ij ≠ 0.
//
// Shapes: a limbs [.., m, k], b limbs [.., k, n], flag s8 [.., m, n], c limbs [.., m, n]; results alias c.
// Tiling: tasks of 32 × 64 entries on XLA's thread pool. A task packs a column of B, unpacked into sign, exponent and
//   significand, once for all flagged rows of the task.
// Exact: exact.h. Integers only, so the rounding and flushing modes of the thread do not matter.
// Cost: about 4 ns a product of two limbs on one core, 0.3 µs an entry for rounding; without flags one pass over them.
// Source: exact.h.
#include <algorithm>
#include <cstring>
#include <vector>

#include "exact.h"
#include "exact_args.h"
#include "threads.h"

namespace jaxmd {
namespace {

namespace ffi = xla::ffi;
using namespace scalar;

constexpr const char* kName = "jaxmd_exact_matmul";
constexpr int64_t kRows = 32, kColumns = 64;

bool any_set(const int8_t* flag, int64_t count) {
  uint64_t seen = 0, word;
  for (; count >= 8; count -= 8, flag += 8) {
    std::memcpy(&word, flag, 8);
    seen |= word;
  }
  for (; count > 0; --count, ++flag) seen |= static_cast<uint8_t>(*flag);
  return seen != 0;
}

// One task's fixed-point number and packed column.
class ExactTask {
 public:
  explicit ExactTask(const ExactJob& job) : job_(job) { std::fill(word_, word_ + kExactWords, 0); }

  void tile(int64_t batch, int64_t row, int64_t column) {
    const ProductShape& s = job_.shape;
    const int64_t rows = std::min(kRows, s.m - row), columns = std::min(kColumns, s.n - column);
    uint64_t flagged[kRows], any = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const int8_t* flag = job_.flag + (batch * s.m + row + r) * s.n + column;
      flagged[r] = 0;
      if (!any_set(flag, columns)) continue;
      for (int64_t j = 0; j < columns; ++j) flagged[r] |= static_cast<uint64_t>(flag[j] != 0) << j;
      any |= flagged[r];
    }
    if (any == 0) return;
    column_.resize(s.k * job_.b.count);
    for (int64_t j = 0; j < columns; ++j) {
      if ((any >> j & 1) == 0) continue;
      pack_column(batch, column + j);
      for (int64_t r = 0; r < rows; ++r) {
        if ((flagged[r] >> j & 1) != 0) entry(batch, row + r, column + j);
      }
    }
  }

 private:
  void pack_column(int64_t batch, int64_t j) {
    const ProductShape& s = job_.shape;
    column_special_ = false;
    for (int i = 0; i < job_.b.count; ++i) {
      const double* b = job_.b.limb[i] + batch * s.k * s.n + j;
      for (int64_t l = 0; l < s.k; ++l) {
        column_special_ |= !is_finite(b[l * s.n]);
        column_[l * job_.b.count + i] = unpack(b[l * s.n]);
      }
    }
  }

  void entry(int64_t batch, int64_t i, int64_t j) {
    const ProductShape& s = job_.shape;
    const int64_t row = (batch * s.m + i) * s.k, at = (batch * s.m + i) * s.n + j;
    if (column_special_ || !accumulate(row)) {
      std::fill(word_, word_ + kExactWords, 0);
      const double value = special(row, batch * s.k * s.n + j);
      std::fill(word_, word_ + kExactWords, 0);
      for (int g = 0; g < job_.c.count; ++g) job_.c.limb[g][at] = g == 0 ? value : 0.0;
      return;
    }
    settle(word_, 1);
    const bool negative = word_[kExactWords - 1] < 0;
    round_to_limbs(ExactDigits{word_, 1}, kExactWords, kExactLow, negative, negative, job_.c.count,
                   [&](int g, double x) { job_.c.limb[g][at] = x; });
    std::fill(word_, word_ + kExactWords, 0);
  }

  // Adds a row of A times the packed column; false if the row holds an inf or nan.
  bool accumulate(int64_t row) {
    const int nb = job_.b.count;
    const int64_t run = kExactRun / (job_.a.count * nb);
    for (int64_t l = 0; l < job_.shape.k; ++l) {
      if (l % run == run - 1) settle(word_, 1);
      const Factor* b = &column_[l * nb];
      for (int i = 0; i < job_.a.count; ++i) {
        const double x = job_.a.limb[i][row + l];
        if (!is_finite(x)) return false;
        const Factor a = unpack(x);
        if (a.mantissa == 0) continue;
        for (int g = 0; g < nb; ++g) add_product(word_, 1, a, b[g]);
      }
    }
    return true;
  }

  double special(int64_t row, int64_t column) {
    int seen = kNone;
    for (int64_t l = 0; l < job_.shape.k; ++l) {
      const auto load_a = [&](int i) { return job_.a.limb[i][row + l]; };
      const auto load_b = [&](int i) { return job_.b.limb[i][column + l * job_.shape.n]; };
      seen |= special_term(classify(load_a, job_.a.count, word_, 1), classify(load_b, job_.b.count, word_, 1));
    }
    return special_value(seen);
  }

  const ExactJob& job_;
  std::vector<Factor> column_;
  bool column_special_ = false;
  int64_t word_[kExactWords];
};

ffi::Error exact_matmul(ffi::ThreadPool pool, int64_t lhs_limbs, int64_t rhs_limbs, ffi::RemainingArgs args,
                        ffi::RemainingRets rets) {
  ExactJob job;
  JAXMD_CHECK(exact_arguments(kName, lhs_limbs, rhs_limbs, args, rets, &job));
  const ProductShape& s = job.shape;
  for (int i = 0; i < job.c.count; ++i) {
    if (job.c.limb[i] != job.given.limb[i]) std::copy_n(job.given.limb[i], s.batch * s.m * s.n, job.c.limb[i]);
  }
  const int64_t row_tiles = (s.m + kRows - 1) / kRows, column_tiles = (s.n + kColumns - 1) / kColumns;
  const int64_t tiles = s.batch * row_tiles * column_tiles;
  const bool small = s.batch * s.m * s.n * (s.k * job.a.count * job.b.count + 50) < 10000;
  parallel_for(pool, tiles, small ? tiles : 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t batch = t / (row_tiles * column_tiles), tile = t % (row_tiles * column_tiles);
      ExactTask(job).tile(batch, tile / column_tiles * kRows, tile % column_tiles * kColumns);
    }
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_exact_matmul_cpu, exact_matmul,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<int64_t>("lhs_limbs")
                                  .Attr<int64_t>("rhs_limbs")
                                  .RemainingArgs()
                                  .RemainingRets());

}  // namespace jaxmd
