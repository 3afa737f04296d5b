// Tiles of AMX: 16 rows of 64 bytes, by number 0 … 7 (the registers tmm0 … tmm7; Intel SDM vol. 1, chapter 18).
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace jaxmd {
namespace amx {

// Eight tiles of full size for this thread, while it lives.
class Tiles {
 public:
  Tiles() {
    alignas(64) const Palette palette{};
    _tile_loadconfig(&palette);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

 private:
  struct Palette {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  static_assert(sizeof(Palette) == 64);
};

// The instructions take the numbers of tiles as constants.
#define JAXMD_TILE_ZERO(t) _tile_zero(t)
#define JAXMD_TILE_LOAD(t, from, stride) _tile_loadd(t, from, stride)
// The same for what needn't stay in the first cache.
#define JAXMD_TILE_STREAM(t, from, stride) _tile_stream_loadd(t, from, stride)
#define JAXMD_TILE_STORE(t, to, stride) _tile_stored(t, to, stride)
// t (int32 [16][16]) += x (int8 [row 16][l 64]) times y (int8 [l / 4 16][column 16][4])
#define JAXMD_TILE_MULTIPLY(t, x, y) _tile_dpbssd(t, x, y)

}  // namespace amx
}  // namespace jaxmd
