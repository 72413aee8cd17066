// The order in which threads take the work of a plan.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"

namespace chunkbench {

// Units of all items for all KV heads. A thread takes the next unit when it is done with one. `partial_items`: so many
// items come first and write partial results. Their units for a head precede those that fold these results in, so a
// thread that waits for a head waits for units that are already taken.
std::vector<Unit> schedule(const std::vector<Item>& items, std::int64_t partial_items, int kv_heads, int threads);

}  // namespace chunkbench
