// The work of a plan, owned and checked, as Python holds it between decodes.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "attention.h"

namespace chunkbench {

using Numbers = std::vector<std::int64_t>;

struct PlanArrays {
    std::vector<Item> items;
    Numbers chunk_keys, chunk_values, rows, folds;
    std::int64_t partial_items, batch, partials;
};

// Throws std::invalid_argument for a shape or a dtype that the kernels do not take.
Shape make_shape(const std::string& dtype, int heads, int kv_heads, int head_dim, int chunk_size);

class DecodePlan {
  public:
    // Throws std::invalid_argument if an index leads out of its array: a wrong plan must not read foreign memory.
    DecodePlan(const Shape& shape, PlanArrays arrays, Isa isa);

    // Tokens in the last chunk of each row's sequence. Throws std::invalid_argument unless they are b values of 1..c.
    void set_last_tokens(const std::int64_t* tokens, std::size_t count);

    // q and out [b][heads][d]; shift: bytes from the plan's addresses to the chunks of the layer that is asked for.
    // Allocates only where more threads are asked for than ever before.
    void decode(const void* q, void* out, float scale, int threads, std::int64_t shift);

    std::size_t item_count() const { return arrays_.items.size(); }

  private:
    Shape shape_;
    PlanArrays arrays_;
    Isa isa_;
    std::int64_t max_rows_ = 0;
    std::mutex mutex_;  // Python may call from several threads, and scratch is the plan's
    std::vector<Counter> left_by_;
    Numbers last_tokens_;
    std::vector<float> partial_outputs_, partial_stats_, scratch_;
};

}  // namespace chunkbench
