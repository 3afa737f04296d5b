// The CPU kernel of window.h, as the handler of engine "direct" sees it.
#pragma once

#include "direct.h"

namespace jaxmd {

constexpr int64_t kWindowTile = 16;  // rows, and columns, of a task

// Entries [row, row + 16) × [column, column + 16) of one product of the batch.
void window_tile(const DirectTask& task, int64_t batch, int64_t row, int64_t column);

}  // namespace jaxmd
