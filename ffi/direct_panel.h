// The CPU kernel of engine "direct", as its handler sees it: one panel of 16 columns, up to 64 rows.
#pragma once

#include "isa.h"
#include "direct.h"

namespace jaxmd {

constexpr int64_t kDirectColumns = 16;  // a multiple of every pack's lanes
constexpr int64_t kDirectRows = 64;
constexpr int64_t kDirectDepth = 128;  // inner indices packed at a time; a sweep follows each
constexpr int64_t kDirectScratch =     // doubles: packed B, a scaled row of A, the slots of all entries
    (kDirectMaxLimbs + 1) * (kDirectDepth * kDirectColumns + kDirectDepth + kDirectRows * kDirectColumns);

using DirectPanel = void(const DirectTask& task, const DirectPlan& plan, int64_t batch, int64_t row, int64_t column,
                         double* scratch);

JAXMD_FOR_EACH_ISA(extern DirectPanel direct_panel;)

}  // namespace jaxmd
