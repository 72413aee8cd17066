// The work descriptors of a plan. Python keeps this object between decodes; it owns and checks its arrays.
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
    Numbers chunks, rows, folds;
    std::int64_t partial_items, batch, partials;
};

// float32, float16 or bfloat16. Throws std::invalid_argument for another name.
Dtype dtype_named(const std::string& name);

// Throws std::invalid_argument for a shape, a dtype or a form of K and V that the kernels do not support.
// value_dim 0: V has head_dim dimensions, too.
Shape make_shape(const std::string& dtype, int heads, int kv_heads, int head_dim, int chunk_size, const std::string& kv,
                 int value_dim = 0);

// A unit of a traced call: its item (the first one, if it has several), its heads, and seconds since the call began.
// Numbers of one type, so that Python reads units as the rows of an array.
struct UnitSeconds {
    double first_item, items, heads, thread;
    double begin, ready, end;
    double parts[kParts];
};

// Units of all items for all KV heads, in the order in which threads take them; a thread that has finished a unit takes
// the next one. The first `partial_items` items write partial results. Their units for a head come before the units
// that fold these results in, so a thread that waits for a head waits for units that are already taken.
std::vector<Unit> schedule(const std::vector<Item>& items, std::int64_t partial_items, int kv_heads, int threads);

class DecodePlan {
  public:
    // Throws std::invalid_argument if an index is outside of its array: a wrong plan must not read foreign memory.
    // `threads`: number of threads for which the work is ordered; `decode` may use another number.
    DecodePlan(const Shape& shape, PlanArrays arrays, int threads, ReadMode mode, Isa isa);

    // Tokens in the last chunk of each row's sequence. Throws std::invalid_argument unless they are b values of 1..c.
    void set_last_tokens(const std::int64_t* tokens, std::size_t count);

    // q and out [b][heads][d], out with the dimension of V; shift: bytes from the plan's addresses to the chunks of the
    // requested layer. The first call allocates what `take_memory` did not bring; later ones only for more threads.
    // sums: sums of the compensation tokens in that layer, nullptr without such tokens. scales: those of fp8 in that
    // layer.
    void decode(const void* q, void* out, float scale, int threads, std::int64_t shift, const float* sums = nullptr,
                KvScales scales = {nullptr, nullptr}, ScoreChanges changes = {0.0f, nullptr});

    // `decode` of layer 0 that adds to running results (attention.h), or replaces them, instead of writing outputs.
    void accumulate(const void* q, Running running, float scale, int threads);

    // The attention of rows over the contexts of two plans, in one call: this one's part to `out` and the other one's
    // to `other_out`; their sum, after a linear map of each, is the attention. The plans have the same rows, heads and
    // dtype; their K and V may have other dimensions. Without `other`, its part is 0: `other_bytes` bytes.
    void decode_beside(const void* q, void* out, DecodePlan* other, const void* other_q, void* other_out,
                       std::int64_t other_bytes, float scale, int threads);

    // Allocates what this plan needs in `decode_beside`, so that calls allocate nothing.
    void reserve_results();

    // The compensation tokens of all rows, see attention.h; `stride` floats from one of `count` entries to the next.
    // Throws std::invalid_argument for another number of rows, or an entry that does not exist.
    void set_compensation(Numbers entries, std::vector<float> shares, std::vector<float> biases, std::int64_t count,
                          std::int64_t stride);

    // Takes the work memory of a plan that is not used any more: new memory for the partial results of thousands of
    // rows takes longer than the plan.
    void take_memory(DecodePlan& before);

    // Which tokens each row reads (attention.h). Throws std::invalid_argument for another number of rows, or numbers
    // that are negative or too large.
    void set_sights(std::vector<Sight> sights);

    // Reads all chunks in the order of `decode`, without arithmetic and without a result: a probe of the memory.
    void read(int threads);

    // `decode` of layer 0, or `read` (then q and out are not used), with the time of each unit.
    std::vector<UnitSeconds> trace(Call call, const void* q, void* out, float scale, int threads);

    std::int64_t batch() const { return arrays_.batch; }
    const Shape& shape() const { return shape_; }

  private:
    Running fresh_results() { return {own_outputs_.data(), own_stats_.data(), true}; }

    // Runs the units; `work` has the arguments of this call.
    void run(Work work, int threads, Call call);

    Shape shape_;
    PlanArrays arrays_;
    ReadMode mode_;
    Isa isa_;
    std::vector<Unit> units_;
    std::int64_t scratch_of_thread_ = 0;
    std::mutex beside_;
    std::mutex mutex_;  // several Python threads may call, and they share the scratch memory
    std::vector<Counter> left_by_;
    Numbers last_tokens_;
    std::vector<Sight> sights_;
    Numbers entries_;
    std::vector<float> shares_, biases_;
    std::int64_t stride_ = 0;
    std::vector<float> partial_outputs_, partial_stats_, scratch_;
    std::vector<float> own_outputs_, own_stats_;
};

}  // namespace chunkbench
