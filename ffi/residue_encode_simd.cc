// Residues of one chunk of an operand: digits (residue_encode_digits.h), then for every modulus their weighted sums mod
// p, centred, or two digits. Compiled once per instruction set.
//
// Shapes: residue_encode.h. Tiling: four vectors of 32-bit lanes and up to two moduli at a time, so that a vector of
//   digits is loaded once for two moduli and eight sums stay in registers.
// Exact: int32 sums of int16 products, S 1.5 2^14 2^7 < 2^28. The quotient is rounded in float32 and may be one off,
//   never more, which the remainder shows.
// Cost: for one modulus S/8 multiply-adds and 1.5 other instructions an element and vector lane of 16 bits.
#include "residue_encode.h"

#include "residue_encode_digits.h"
#include "residue_encode_vector.h"

namespace jaxmd {
namespace JAXMD_ISA {
namespace {

constexpr float kMagic = 12582912.0f;  // 1.5 2^23: the sum's low bits are the nearest integer
constexpr int kMagicBits = 0x4b400000;
constexpr int kLanes = kBytes / 4;

// One run of memory a channel: `length` bytes from chunk element `at` on.
struct Run {
  int64_t at, length;
  int8_t* out;
};

// Bytes of four vectors of residues, given as the int16 pairs (0, 2) and (1, 3) of every lane.
inline void store_bytes(const Run& run, int64_t offset, I16 even, I16 odd) {
  const I16 bytes = (even & 0xff) | (odd << 8);
  const int64_t left = run.length - offset;
  if (left >= kBytes) {
    store_vector(run.out + offset, bytes);
  } else {
    int8_t buffer[kBytes];
    store_vector(buffer, bytes);
    std::memcpy(run.out + offset, buffer, left);
  }
}

// sum[m][v] = the weighted sums of digits of vector v for M rows of weights.
template <int M>
inline void weighted_sums(const int32_t* digits, int digit_pairs, const int32_t* const* weights, I32 (*sum)[4]) {
  for (int m = 0; m < M; ++m) {
    for (int v = 0; v < 4; ++v) sum[m][v] = I32{};
  }
  for (int t = 0; t < digit_pairs; ++t) {
    I32 d[4];
    for (int v = 0; v < 4; ++v) d[v] = load_vector<I32>(digits + (4 * t + v) * kLanes);
    for (int m = 0; m < M; ++m) {
      const I32 w = I32{} + weights[m][t];
      for (int v = 0; v < 4; ++v) sum[m][v] += dot_pairs(d[v], w);
    }
  }
}

// Two vectors of sums, less than 2^28 p / 256, to residues in [-p/2, p/2), as int16 pairs.
inline I16 small_residues(I32 s0, I32 s1, int p, float inverse) {
  // s/p is off by less than 0.16, so that with 0.2 less only remainders of p/2 and more can remain
  const F32 q0 = multiply_add(__builtin_convertvector(s0, F32), inverse, -0.2f) + kMagic;
  const F32 q1 = multiply_add(__builtin_convertvector(s1, F32), inverse, -0.2f) + kMagic;
  const int16_t modulus = p, half = (p - 1) / 2;
  const I16 r = (I16)((U16)low_halves(s0, s1) - (U16)low_halves((I32)q0, (I32)q1) * static_cast<uint16_t>(p));
  return r - ((r > half) & modulus);
}

template <int M>
void small_channels(const ResidueEncodeTask& task, const ResidueEncodeScratch& from, int first, const Run* runs) {
  const int32_t* weights[M];
  int p[M];
  float inverse[M];
  for (int m = 0; m < M; ++m) {
    weights[m] = task.weights + (first + m) * task.digit_pairs;
    p[m] = task.moduli[first + m];
    inverse[m] = 1.0f / p[m];
  }
  for (int64_t offset = 0; offset < runs[0].length; offset += kBytes) {
    I32 sum[M][4];
    weighted_sums<M>(from.digits + (runs[0].at + offset) * task.digit_pairs, task.digit_pairs, weights, sum);
    for (int m = 0; m < M; ++m) {
      store_bytes(runs[m], offset, small_residues(sum[m][0], sum[m][2], p[m], inverse[m]),
                  small_residues(sum[m][1], sum[m][3], p[m], inverse[m]));
    }
  }
}

// Close to s mod p: |result| < p/2 + p/512 for |s| < 2^28.
inline I32 nearly_reduced(I32 s, int p, float inverse) {
  const F32 q = multiply_add(__builtin_convertvector(s, F32), inverse, kMagic);
  return s - ((I32)q - kMagicBits) * p;
}

// Channels a, b and a + b of two-digit modulus number j: 0 <= f = 129 (X + 128) mod p = 129 u + 256 b with u = a + 128.
void two_digit_channels(const ResidueEncodeTask& task, const ResidueEncodeScratch& from, int j, const Run* runs) {
  const int32_t* table = task.weights + static_cast<int64_t>(task.small + 2 * j) * task.digit_pairs;
  const int32_t* weights[2] = {table, table + task.digit_pairs};
  const int p = task.moduli[task.small + j];
  const float inverse = 1.0f / p;
  for (int64_t offset = 0; offset < runs[0].length; offset += kBytes) {
    I32 sum[2][4], f[4];
    weighted_sums<2>(from.digits + (runs[0].at + offset) * task.digit_pairs, task.digit_pairs, weights, sum);
    for (int v = 0; v < 4; ++v) {
      const I32 r = nearly_reduced((nearly_reduced(sum[0][v], p, inverse) << 8) + sum[1][v] + 129 * 128, p, inverse);
      f[v] = r + ((r < 0) & p);
    }
    I16 a[2], b[2];
    for (int h = 0; h < 2; ++h) {
      const U16 both = (U16)low_halves(f[h], f[h + 2]), u = both * 129 & 255;
      a[h] = (I16)u - 128;
      b[h] = (I16)(both - u * 129) >> 8;
    }
    store_bytes(runs[0], offset, a[0], a[1]);
    store_bytes(runs[1], offset, b[0], b[1]);
    store_bytes(runs[2], offset, a[0] + b[0], a[1] + b[1]);
  }
}

}  // namespace

extern ResidueEncodeKernel residue_encode_chunk;
void residue_encode_chunk(const ResidueEncodeTask& task, const ResidueEncodeChunk& chunk,
                          const ResidueEncodeScratch& scratch) {
  gather(task, chunk, scratch);
  chunk_digits(task, scratch);
  const bool one = chunk.pitch == task.padded;  // whole rows are one run
  const int64_t count = one ? 1 : chunk.count, length = one ? chunk.count * chunk.length : chunk.length;
  const int64_t channel = task.batch * task.rows * task.padded;
  int8_t* out = task.out + (chunk.batch * task.rows + chunk.row) * task.padded + chunk.first;
  for (int64_t i = 0; i < count; ++i, out += task.padded) {
    Run runs[3];
    const auto set = [&](int from, int channels) {
      for (int c = 0; c < channels; ++c) runs[c] = {i * chunk.pitch, length, out + (from + c) * channel};
    };
    int m = 0;
    for (; m + 2 <= task.small; m += 2) {
      set(m, 2);
      small_channels<2>(task, scratch, m, runs);
    }
    if (m < task.small) {
      set(m, 1);
      small_channels<1>(task, scratch, m, runs);
    }
    for (int j = 0; j < task.pairs; ++j) {
      set(task.small + 3 * j, 3);
      two_digit_channels(task, scratch, j, runs);
    }
  }
}

}  // namespace JAXMD_ISA
}  // namespace jaxmd
