#include "decode_plan.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <stdexcept>
#include <utility>

#include "parallel.h"

namespace chunkbench {
namespace {

// Limits: products of these numbers, and of an item's queries and the head dimension, must not overflow in the loops.
constexpr int kMaxHeads = 65536, kMaxChunkSize = 65536, kMaxQueries = 65536;
constexpr std::int64_t kMostChunks = std::int64_t{1} << 40;  // of a sequence; positions must not overflow
constexpr std::int64_t kMostTokens = std::int64_t{1} << 60;
constexpr std::int64_t kMaxBatch = std::int64_t{1} << 24;  // a wrong number must not take the machine's memory

void require(bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(what);
}

// Locks two mutexes in one order for all callers. (std::scoped_lock needs a function of glibc 2.34, see
// old_libraries.cpp.)
class Both {
  public:
    Both(std::mutex& a, std::mutex& b)
        : one_(std::less<std::mutex*>{}(&a, &b) ? a : b), two_(std::less<std::mutex*>{}(&a, &b) ? b : a) {}

  private:
    std::lock_guard<std::mutex> one_, two_;
};

bool inside(std::int64_t first, std::int64_t count, std::size_t size) {
    const auto end = static_cast<std::int64_t>(size);
    return first >= 0 && count >= 0 && first <= end && count <= end - first;
}

void require_inside(const Numbers& numbers, std::int64_t end, const char* what) {
    for (std::int64_t number : numbers) require(number >= 0 && number < end, what);
}

}  // namespace

Dtype dtype_named(const std::string& name) {
    if (name == "float32") return Dtype::float32;
    if (name == "float16") return Dtype::float16;
    if (name == "bfloat16") return Dtype::bfloat16;
    throw std::invalid_argument("dtype is float32, float16 or bfloat16, not " + name);
}

namespace {

Kv kv_named(const std::string& name) {
    if (name == "same") return Kv::same;
    if (name == "int8") return Kv::int8;
    if (name == "uint8") return Kv::uint8;
    if (name == "fp8") return Kv::fp8;
    if (name == "latent") return Kv::latent;
    throw std::invalid_argument("K and V are stored as same, int8, uint8, fp8 or latent, not " + name);
}

}  // namespace

Shape make_shape(const std::string& dtype, int heads, int kv_heads, int head_dim, int chunk_size, const std::string& kv,
                 int value_dim) {
    Shape shape{};
    shape.kv = kv_named(kv);
    shape.dtype = dtype_named(dtype);
    require(kv_heads >= 1 && heads >= kv_heads && heads % kv_heads == 0, "heads must be a multiple of kv_heads");
    require(heads <= kMaxHeads, "heads must be at most 65536");
    require(head_dim >= 16 && head_dim <= kMaxHeadDim && head_dim % 16 == 0, "head_dim must be 16, 32, .. 1024");
    if (value_dim == 0) value_dim = head_dim;
    require(value_dim >= 16 && value_dim <= kMaxHeadDim && value_dim % 16 == 0, "value_dim must be 16, 32, .. 1024");
    require(shape.kv != Kv::latent || value_dim <= head_dim, "latent: value_dim is at most head_dim");
    require(!shape.in_8_bits() || value_dim == head_dim, "8 bits: value_dim must be head_dim");
    require(chunk_size >= 16 && chunk_size <= kMaxChunkSize && chunk_size % 16 == 0,
            "chunk_size must be 16, 32, .. 65536");
    shape.heads = heads;
    shape.kv_heads = kv_heads;
    shape.head_dim = head_dim;
    shape.value_dim = value_dim;
    shape.chunk_size = chunk_size;
    const std::int64_t element = shape.in_8_bits() ? 1 : shape.dtype == Dtype::float32 ? 4 : 2;
    const std::int64_t floats = shape.kv == Kv::int8 ? 2 : shape.kv == Kv::uint8 ? 4 : 0;  // of a token
    const std::int64_t numbers = shape.kv == Kv::latent ? head_dim : head_dim + value_dim;
    shape.head_bytes = chunk_size * (numbers * element + floats * static_cast<std::int64_t>(sizeof(float)));
    return shape;
}

DecodePlan::DecodePlan(const Shape& shape, PlanArrays arrays, int threads, ReadMode mode, Isa isa)
    : shape_(shape), arrays_(std::move(arrays)), mode_(mode), isa_(isa), left_by_(shape.kv_heads) {
    require(arrays_.partial_items >= 0 && arrays_.partial_items <= static_cast<std::int64_t>(arrays_.items.size()),
            "partial_items: how many of the items come first");
    require(arrays_.batch >= 0 && arrays_.partials >= 0, "batch and partials cannot be negative");
    require(arrays_.batch <= kMaxBatch, "batch must be at most 16777216");
    require(threads >= 1, "threads must be at least 1");
    const std::int64_t group = shape_.heads / shape_.kv_heads;
    std::int64_t most_partials = 0, states = 0, queries = 0;
    for (const Item& item : arrays_.items) {
        require(inside(item.first_chunk, item.chunk_count, arrays_.chunks.size()), "item's chunks");
        require(item.row_count >= 1 && inside(item.first_row, item.row_count, arrays_.rows.size()), "item's rows");
        require(item.tail_row >= -1 && item.tail_row < arrays_.batch, "item's tail row");
        require(item.before >= 0 && item.before < kMostChunks, "item's chunks before");
        require(item.first_partial == -1 ||
                    (item.first_partial >= 0 && item.first_partial <= arrays_.partials - item.row_count),
                "item's partial results");
        require(inside(item.first_fold, item.folds, arrays_.folds.size()), "item's partial results to fold in");
        require(item.folds == 0 || (item.row_count == 1 && item.first_partial == -1),
                "only the last item of a row folds");
        require(item.heads >= 1 && item.heads <= shape_.kv_heads, "item's heads: 1 .. kv_heads");
        require(item.row_count <= kMaxQueries / (group * item.heads), "an item has at most 65536 queries");
        states = std::max(states, item.row_count * group * item.heads);
        queries = std::max(queries, item.row_count * group);
        most_partials += item.row_count;
    }
    require(arrays_.partials <= most_partials, "at most one partial result for each row of an item");
    require_inside(arrays_.rows, arrays_.batch, "rows");
    require_inside(arrays_.folds, arrays_.partials, "partial results to fold in");
    scratch_of_thread_ = scratch_floats(shape_, states, queries);
    units_ = schedule(arrays_.items, arrays_.partial_items, shape_.kv_heads, threads);
    last_tokens_.assign(arrays_.batch, shape_.chunk_size);
}

void DecodePlan::take_memory(DecodePlan& before) {
    if (&before == this) return;
    const Both both(mutex_, before.mutex_);
    partial_outputs_.swap(before.partial_outputs_);
    partial_stats_.swap(before.partial_stats_);
    scratch_.swap(before.scratch_);
}

void DecodePlan::set_last_tokens(const std::int64_t* tokens, std::size_t count) {
    const std::lock_guard<std::mutex> alone(mutex_);
    require(count == last_tokens_.size(), "last_tokens: one number for each row");
    for (std::size_t i = 0; i < count; ++i) {
        require(tokens[i] >= 1 && tokens[i] <= shape_.chunk_size, "last_tokens: 1 .. chunk_size");
    }
    std::copy(tokens, tokens + count, last_tokens_.begin());
}

void DecodePlan::set_compensation(Numbers entries, std::vector<float> shares, std::vector<float> biases,
                                  std::int64_t count, std::int64_t stride) {
    const std::lock_guard<std::mutex> alone(mutex_);
    const auto batch = static_cast<std::size_t>(arrays_.batch);
    require(shape_.value_dim == shape_.head_dim, "compensation: K and V must have the same dimension");
    require(entries.size() == batch && shares.size() == batch && biases.size() == batch, "compensation: one for a row");
    const std::int64_t floats = std::int64_t{2} * shape_.kv_heads * shape_.head_dim;
    require(count >= 0 && stride >= floats &&
                stride <= std::numeric_limits<std::int64_t>::max() / 8 / std::max<std::int64_t>(count, 1),
            "compensation: entries are at least 2 * kv_heads * head_dim numbers apart");
    for (std::int64_t entry : entries) require(entry >= -1 && entry < count, "compensation: no such entry");
    entries_ = std::move(entries);
    shares_ = std::move(shares);
    biases_ = std::move(biases);
    stride_ = stride;
}

void DecodePlan::set_sights(std::vector<Sight> sights) {
    const std::lock_guard<std::mutex> alone(mutex_);
    require(static_cast<std::int64_t>(sights.size()) == arrays_.batch, "sights: one for each row");
    for (const Sight& sight : sights) {
        require(sight.before >= 0 && sight.before < kMostChunks, "sights: chunks before the last one");
        require(sight.window >= 1 && sight.window <= kMostTokens, "sights: a window has at least one token");
        require(sight.reach >= 0 && sight.reach <= kMostHidden, "sights: at most 256 tokens can be hidden");
    }
    sights_ = std::move(sights);
}

void DecodePlan::decode(const void* q, void* out, float scale, int threads, std::int64_t shift, const float* sums,
                        KvScales scales, ScoreChanges changes) {
    Work work{};
    require(changes.cap >= 0 && std::isfinite(changes.cap), "cap: a finite number, at least 0");
    work.changes = changes;
    require(sums == nullptr || !entries_.empty(), "sums without set_compensation");
    work.compensation = {sums, stride_, entries_.data(), shares_.data(), biases_.data()};
    work.q = q;
    work.out = out;
    work.scale = scale;
    work.kv_scales = scales;
    work.shift = shift;
    run(work, threads, Call::decode);
}

void DecodePlan::accumulate(const void* q, Running running, float scale, int threads) {
    Work work{};
    work.q = q;
    work.running = running;
    work.scale = scale;
    run(work, threads, Call::decode);
}

void DecodePlan::reserve_results() {
    const std::lock_guard<std::mutex> alone(beside_);
    if (!own_stats_.empty()) return;
    const std::size_t queries = static_cast<std::size_t>(arrays_.batch) * shape_.heads;
    own_outputs_.assign(queries * shape_.value_dim, 0.0f);
    own_stats_.assign(2 * queries, 0.0f);  // rows that the plan does not read keep these
    for (std::size_t i = 0; i < own_stats_.size(); i += 2) own_stats_[i] = -HUGE_VALF;
}

void DecodePlan::decode_beside(const void* q, void* out, DecodePlan* other, const void* other_q, void* other_out,
                               std::int64_t other_bytes, float scale, int threads) {
    if (other == nullptr) {
        std::memset(other_out, 0, static_cast<std::size_t>(other_bytes));
        decode(q, out, scale, threads, 0);
        return;
    }
    const std::int64_t queries = arrays_.batch * shape_.heads;
    require(other != this && other->arrays_.batch == arrays_.batch && other->shape_.heads == shape_.heads &&
                other->shape_.dtype == shape_.dtype,
            "decode_beside: the other plan has other rows, heads or another dtype");
    require(!shape_.in_8_bits() && !other->shape_.in_8_bits() && entries_.empty() && other->entries_.empty(),
            "decode_beside: not in 8 bits, and without compensation tokens");
    require(other_bytes == queries * other->shape_.value_dim * (shape_.dtype == Dtype::float32 ? 4 : 2),
            "decode_beside: bytes of the other plan's outputs");
    reserve_results();
    other->reserve_results();
    const Both both(beside_, other->beside_);
    const Running own = fresh_results(), others = other->fresh_results();
    other->accumulate(other_q, others, scale, threads);
    accumulate(q, own, scale, threads);
    const Loops loops = loops_of(isa_, shape_.dtype);
    const auto write = [&](const Shape& shape, const float* from, std::int64_t query, float factor, void* to) {
        const std::int64_t first = query * shape.value_dim, bytes = shape.dtype == Dtype::float32 ? 4 : 2;
        loops.scale_row(shape.dtype, from + first, shape.value_dim, factor, static_cast<char*>(to) + first * bytes);
    };
    // Merged as partial results of one plan are (section 3.2 of the paper).
    constexpr std::int64_t kTogether = 64;
    share_out((queries + kTogether - 1) / kTogether, threads, [&](std::int64_t part, int) {
        const std::int64_t end = std::min(queries, (part + 1) * kTogether);
        for (std::int64_t i = part * kTogether; i < end; ++i) {
            const float peaks[] = {own.stats[2 * i], others.stats[2 * i]};
            const float top = std::max(peaks[0], peaks[1]);
            float shares[2], total = 0.0f;
            for (int n = 0; n < 2; ++n) {
                shares[n] = peaks[n] == top ? 1.0f : std::exp(scale * (peaks[n] - top));
                total += shares[n] * (n == 0 ? own : others).stats[2 * i + 1];
            }
            write(shape_, own.outputs, i, shares[0] / total, out);
            write(other->shape_, others.outputs, i, shares[1] / total, other_out);
        }
    });
}

void DecodePlan::read(int threads) { run(Work{}, threads, Call::read); }

std::vector<UnitSeconds> DecodePlan::trace(Call call, const void* q, void* out, float scale, int threads) {
    using Clock = std::chrono::steady_clock;
    std::vector<UnitTrace> traces(units_.size());
    Work work{};
    work.q = q;
    work.out = out;
    work.scale = scale;
    work.traces = traces.data();
    const auto began = Clock::now();
    const std::int64_t first = ticks();
    run(work, threads, call);
    const std::int64_t last = ticks();
    const double tick = std::chrono::duration<double>(Clock::now() - began).count() / static_cast<double>(last - first);
    std::vector<UnitSeconds> units(units_.size());
    for (std::size_t i = 0; i < units.size(); ++i) {
        const auto number = [](std::int64_t value) { return static_cast<double>(value); };
        const auto seconds = [&](std::int64_t ticks_taken) { return number(ticks_taken) * tick; };
        const Unit& unit = units_[i];
        const UnitTrace& trace = traces[i];
        units[i] = {number(unit.first_item),      number(unit.items),
                    number(unit.heads.count),     number(trace.thread),
                    seconds(trace.begin - first), seconds(trace.ready - first),
                    seconds(trace.end - first),   {}};
        for (int part = 0; part < kParts; ++part) units[i].parts[part] = seconds(trace.parts[part]);
    }
    return units;
}

void DecodePlan::run(Work work, int threads, Call call) {
    require(threads >= 1, "threads must be at least 1");
    const std::lock_guard<std::mutex> alone(mutex_);
    const auto units = static_cast<std::int64_t>(units_.size());
    if (units == 0) return;
    if (threads > kMostThreads) threads = kMostThreads;
    if (threads > units) threads = static_cast<int>(units);  // no scratch for threads without work
    const auto at_least = [](std::vector<float>& memory, std::int64_t floats) {
        if (memory.size() < static_cast<std::size_t>(floats)) memory.resize(floats);
    };
    at_least(scratch_, scratch_of_thread_ * threads);
    at_least(partial_outputs_, arrays_.partials * shape_.heads * shape_.value_dim);
    at_least(partial_stats_, arrays_.partials * shape_.heads * 2);
    work.items = arrays_.items.data();
    work.units = units_.data();
    work.unit_count = units;
    work.chunks = arrays_.chunks.data();
    work.rows = arrays_.rows.data();
    work.sights = sights_.empty() ? nullptr : sights_.data();
    work.last_tokens = last_tokens_.data();
    work.partial_items = arrays_.partial_items;
    work.folds = arrays_.folds.data();
    work.partial_outputs = partial_outputs_.data();
    work.partial_stats = partial_stats_.data();
    work.scratch = scratch_.data();
    work.mode = mode_;
    chunkbench::decode(shape_, work, scratch_of_thread_, threads, isa_, left_by_.data(), call);
}

}  // namespace chunkbench
