// jaxmd_residue_encode on the CPU: shapes, checks, weights, and chunks of the operand on XLA's thread pool. The kernel
// is in residue_encode_simd.cc, the formula in residue_encode.h.
#include <algorithm>
#include <string>
#include <vector>

#include "huge_pages.h"
#include "isa.h"
#include "product_args.h"
#include "residue_encode.h"
#include "residue_steps_cpu.h"
#include "threads.h"

namespace jaxmd {

JAXMD_FOR_EACH_ISA(extern ResidueEncodeKernel residue_encode_chunk;)

namespace {

namespace ffi = xla::ffi;

constexpr const char* kName = "jaxmd_residue_encode";

int64_t rounded_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

int64_t centred(int64_t x, int64_t p) {
  const int64_t r = (x + p / 2) % p;
  return (r < 0 ? r + p : r) - p / 2;
}

int32_t word(int64_t first, int64_t second) {
  return static_cast<int32_t>((static_cast<uint32_t>(second) << 16) | (static_cast<uint32_t>(first) & 0xffff));
}

// Residues of scale 2^(15 (S-1-s)) mod p, s = 0 ... S - 1.
std::vector<int64_t> powers(int64_t p, int64_t scale, int digits) {
  std::vector<int64_t> w(digits);
  int64_t power = centred(scale, p);
  for (int s = digits - 1; s >= 0; --s) {
    w[s] = power;
    power = centred(power * (1 << kResidueDigit), p);
  }
  return w;
}

// `ResidueEncodeTask::weights`.
std::vector<int32_t> weight_table(const int32_t* moduli, int small, int pairs, int digits) {
  std::vector<int32_t> table;
  const auto append = [&](std::vector<int64_t> w) {
    w.resize(rounded_up(w.size(), 2));
    for (size_t s = 0; s < w.size(); s += 2) table.push_back(word(w[s], w[s + 1]));
  };
  for (int m = 0; m < small + pairs; ++m) {
    std::vector<int64_t> w = powers(moduli[m], m < small ? 1 : 129, digits);
    if (m < small) {
      append(w);
      continue;
    }
    std::vector<int64_t> high(digits), low(digits);
    for (int s = 0; s < digits; ++s) {
      low[s] = centred(w[s], 256);
      high[s] = (w[s] - low[s]) / 256;
    }
    append(high);
    append(low);
  }
  return table;
}

// How the operand is cut: rows of a chunk, and inner indices of one.
struct Cut {
  int64_t rows, length, pitch;
};

Cut cut(const ResidueEncodeTask& task) {
  // limbs and digits of a chunk in 32 KB, or 64 KB of a transposed operand, whose chunks have eight columns, a cache
  // line, where they can; with longer columns 512 KB: rows of the result in long runs of memory are worth more than
  // the first cache, a quarter of the time of four limbs at k = 1024
  const int64_t least = task.transposed ? 8 : 1, each = 8 * task.x.count + 4 * task.digit_pairs;
  const auto held = [=](int64_t bytes) { return std::max<int64_t>(256, bytes / each / 64 * 64); };
  const int64_t elements = std::min<int64_t>(task.transposed ? 2048 : 1024, held(task.transposed ? 65536 : 32768));
  if (task.padded * least <= elements) {
    const int64_t rows = std::min(elements / task.padded / least * least, task.rows);
    return {rows, task.padded, task.padded};
  }
  const int64_t longest = task.transposed ? held(524288) / least : elements;
  const int64_t length = rounded_up(std::min(task.padded, longest), kResidueAlign);
  return {std::min(least, task.rows), length, length};
}

}  // namespace

ffi::Error encode_residues(ffi::ThreadPool& pool, const char* who, ResidueEncodeTask task) {
  const int digits = static_cast<int>((task.bits + kResidueDigit) / kResidueDigit);
  if (task.bits < 1 || digits > kMaxResidueDigits) {
    return invalid(who, "bits is " + std::to_string(task.bits) + "; wanted 1 to 1200.");
  }
  for (int m = 0; m < task.small + task.pairs; ++m) {
    if (task.moduli[m] < 2 || task.moduli[m] > (m < task.small ? 256 : 32767)) {
      return invalid(who, "modulus " + std::to_string(task.moduli[m]) + "; wanted 2 to 256, or 32767 for pairs.");
    }
  }
  if (task.batch * task.rows * task.padded == 0) return ffi::Error::Success();
  const std::vector<int32_t> weights = weight_table(task.moduli, task.small, task.pairs, digits);
  task.weights = weights.data();
  task.digit_pairs = (digits + 1) / 2;
  const Cut size = cut(task);
  const int64_t row_chunks = (task.rows + size.rows - 1) / size.rows;
  const int64_t inner_chunks = (task.padded + size.length - 1) / size.length;
  const int64_t capacity = rounded_up(size.rows * size.pitch, kResidueAlign);
  ResidueEncodeKernel* const kernel = JAXMD_CHOSEN(residue_encode_chunk);
  const int64_t chunks = task.batch * row_chunks * inner_chunks;
  const int64_t grain = std::min<int64_t>(16, std::max<int64_t>(1, chunks / (8 * pool.num_threads())));
  parallel_for(pool, chunks, grain, [=, &task](int64_t begin, int64_t end) {
    std::vector<double> limbs(task.x.count * capacity);
    std::vector<int32_t> power(capacity), digits(capacity * task.digit_pairs);
    std::vector<int64_t> sums(2 * task.digit_pairs * kResidueAlign);
    for (int64_t at = begin; at < end; ++at) {
      ResidueEncodeChunk chunk;
      chunk.batch = at / (row_chunks * inner_chunks);
      chunk.row = at / inner_chunks % row_chunks * size.rows;
      chunk.first = at % inner_chunks * size.length;
      chunk.count = std::min(size.rows, task.rows - chunk.row);
      chunk.length = std::min(size.length, task.padded - chunk.first);
      chunk.pitch = size.pitch;
      kernel(task, chunk,
             {rounded_up(chunk.count * chunk.pitch, kResidueAlign), limbs.data(), power.data(), digits.data(),
              sums.data()});
    }
  });
  return ffi::Error::Success();
}

namespace {

ffi::Error residue_encode(ffi::ThreadPool pool, int64_t bits, int64_t pairs, int64_t side, ffi::RemainingArgs args,
                          ffi::Result<ffi::Buffer<ffi::S8>> out) {
  ResidueEncodeTask task{};
  Dimensions x, e, s, w, p;
  const int32_t* unused = nullptr;
  const int64_t limbs = static_cast<int64_t>(args.size()) - 4;
  JAXMD_CHECK(operand_limbs(kName, args, 0, limbs, &x, &task.x));
  JAXMD_CHECK((operand<ffi::S32>(args, limbs, &e, &task.exponent)));
  JAXMD_CHECK((operand<ffi::S32>(args, limbs + 1, &s, &task.shift)));
  JAXMD_CHECK((operand<ffi::S32>(args, limbs + 2, &w, &unused)));
  JAXMD_CHECK((operand<ffi::S32>(args, limbs + 3, &p, &task.moduli)));
  if (x.size() < 2 || side < 0 || side > 1) {
    return invalid(kName, "x has shape " + shape_text(x) + " and side is " + std::to_string(side) +
                              "; wanted a matrix, and 0 or 1.");
  }
  const size_t rank = x.size();
  task.transposed = side == 1;
  task.rows = x[rank - 2 + side];
  task.k = x[rank - 1 - side];
  task.padded = rounded_up(task.k, 16);
  task.batch = 1;
  for (size_t i = 0; i + 2 < rank; ++i) task.batch *= x[i];
  JAXMD_CHECK(expect_shape(kName, "the exponent", e, x, rank - 2, {task.rows}));
  JAXMD_CHECK(expect_shape(kName, "the shift", s, x, rank - 2, {task.k}));
  if (p.size() != 1 || w.size() != 2 || w[0] != p[0] || pairs < 0 || pairs > p[0]) {
    return invalid(kName, "tables have shapes " + shape_text(w) + " and " + shape_text(p) + ", pairs is " +
                              std::to_string(pairs) + "; wanted (N, count), (N,) and 0 to N.");
  }
  task.pairs = static_cast<int>(pairs);
  task.small = static_cast<int>(p[0] - pairs);
  const Dimensions r = out->dimensions();
  bool fits = r.size() == rank + 1 && r[0] == task.small + 3 * task.pairs && r[rank - 1] == task.rows &&
              r[rank] == task.padded;
  for (size_t i = 0; fits && i + 2 < rank; ++i) fits = r[i + 1] == x[i];
  if (!fits) {
    return invalid(kName, "the result has shape " + shape_text(r) + "; wanted channels, leading axes, rows and " +
                              std::to_string(task.padded) + ".");
  }
  task.bits = static_cast<int>(std::min<int64_t>(bits, INT16_MAX));
  task.out = out->typed_data();
  prefer_huge_pages(task.out, out->size_bytes());
  return encode_residues(pool, kName, task);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxmd_residue_encode_cpu, residue_encode,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<int64_t>("bits")
                                  .Attr<int64_t>("pairs")
                                  .Attr<int64_t>("side")
                                  .RemainingArgs()
                                  .Ret<ffi::Buffer<ffi::S8>>());

}  // namespace jaxmd
