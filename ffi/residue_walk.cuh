// Which tiles a block that stays makes, one after another, where the first take three times as long as the rest.
//
// Walkers take tiles in turns. Where the long ones (of three channels) do not come out even, walkers that are left
// without one take three short ones (of one channel) instead, and the turns go on: all have equally many channels,
// up to the last turn.
#pragma once

#include <cstdint>

#include "value.h"

namespace jaxmd {
namespace JAXMD_ISA {

class ResidueWalk {
 public:
  // Tiles 0 ... long_tiles - 1 are the long ones of `tiles`.
  JAXMD_INLINE ResidueWalk(uint32_t long_tiles, uint32_t tiles, uint32_t walker, uint32_t walkers)
      : long_(long_tiles), tiles_(tiles), walker_(walker), walkers_(walkers), at_(walker) {
    const uint32_t uneven = long_ % walkers;
    even_ = uneven == 0 ? long_ : long_ + 3 * (walkers - uneven);
    if (at_ >= long_) begin_short();
  }

  JAXMD_INLINE bool here() const { return at_ < tiles_; }
  JAXMD_INLINE uint32_t tile() const { return at_; }

  JAXMD_INLINE void advance() {
    if (at_ < long_) {
      at_ += walkers_;
      if (at_ >= long_) begin_short();
    } else if (at_ < even_) {
      at_ += idle();
      if (at_ >= even_) at_ = even_ + walker_;
    } else {
      at_ += walkers_;
    }
  }

  // Whether every walker has something to do in this turn, from its first to its last step.
  JAXMD_INLINE bool all_have_one() const {
    if (at_ >= even_) return at_ - walker_ + walkers_ <= tiles_;
    return at_ - walker_ + walkers_ <= long_ || even_ <= tiles_;
  }

 private:
  JAXMD_INLINE uint32_t idle() const { return (even_ - long_) / 3; }  // walkers without a long tile in the uneven turn

  JAXMD_INLINE void begin_short() {
    const bool instead = even_ > long_ && walker_ >= walkers_ - idle();
    at_ = instead ? long_ + walker_ - (walkers_ - idle()) : even_ + walker_;
  }

  const uint32_t long_, tiles_, walker_, walkers_;
  uint32_t even_;  // the first tile after the uneven turn
  uint32_t at_;
};

}  // namespace JAXMD_ISA
}  // namespace jaxmd
