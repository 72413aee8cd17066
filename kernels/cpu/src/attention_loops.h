// The loops of decode attention, compiled once for every instruction set. The including file includes one vec_*.h first
// and sets CHUNKBENCH_NAMESPACE to its namespace. Nothing here may call inline functions of the standard library: the
// linker might keep the copy from this file, which is compiled for instructions that the CPU may lack.
#include <cstdint>

#include "attention.h"

namespace chunkbench {
namespace CHUNKBENCH_NAMESPACE {
namespace {

constexpr float kInfinity = __builtin_inff();
constexpr float kLowest = -3.4028234663852886e38f;  // the smallest finite float: replaces a maximum of -inf
constexpr float kLog2E = 1.44269504088896341f;

// 2^x for x <= 0, 0 for -inf, NaN for NaN; relative error below 2e-7. 2^x = 2^n 2^f with |f| <= 1/2; 2^f comes from the
// minimax polynomial for the relative error on this interval (2e-9).
inline V16 exp2(V16 x) {
    const V16 clamped = max(set1(kLeastPower), x);
    const V16 n = round(clamped);
    const V16 f = subtract(clamped, n);
    V16 y = set1(0.00015345774590969086f);
    y = fma(y, f, set1(0.0013399930903688073f));
    y = fma(y, f, set1(0.009618489071726799f));
    y = fma(y, f, set1(0.05550328642129898f));
    y = fma(y, f, set1(0.24022646248340607f));
    y = fma(y, f, set1(0.6931471824645996f));
    y = fma(y, f, set1(1.0f));
    return scale_by_power(y, n);
}

// 2^(a - b), or 1 if both are the same infinity.
inline float exp2_difference(float a, float b) { return a == b ? 1.0f : first(exp2(set1(a - b))); }

// Largest of `count` values, a multiple of 16. Ignores NaN, which becomes a NaN weight later.
inline float largest(const float* values, int count) {
    V16 peak = set1(-kInfinity);
    for (int i = 0; i < count; i += 16) peak = max(load(values + i), peak);
    return top(peak);
}

// How the loops read K and V of a dtype. They take kStep values of the summed index at a time.
struct Float32 {
    using Stored = float;
    static constexpr int kStep = 1;
    static V16 widen(const Stored* p) { return load(p); }
    static void put(Stored* p, V16 x) { store(p, x); }
};

struct Float16 {
    using Stored = std::uint16_t;
    static constexpr int kStep = 1;
    static V16 widen(const Stored* p) { return load_half(p); }
    static void put(Stored* p, V16 x) { store_half(p, x); }
};

struct Bfloat16 {
    using Stored = std::uint16_t;
    static constexpr int kStep = 2;
    static V16 widen(const Stored* p) { return load_bfloat16(p); }
    static void put(Stored* p, V16 x) { store_bfloat16(p, x); }
};

// Whether products take pairs of T's numbers in their stored form. Then the left side is rounded to such pairs, too.
template <class T>
constexpr bool kInPairs = T::kStep == 2 && kPairProducts;

// body(0), .. body(N - 1), unrolled, so that arrays with constant indices stay in registers.
template <int I>
struct Constant {
    constexpr operator int() const { return I; }
};
template <int N, int I = 0, class Body>
[[gnu::always_inline]] inline void times(const Body& body) {
    if constexpr (I < N) {
        body(Constant<I>());
        times<N, I + 1>(body);
    }
}

// sums[r][s] += left[r] * right[s]: R rows of `inner` values times S blocks of `inner` x 16 numbers. Rows are `row`
// numbers apart, blocks are `block` numbers apart. Prefetches the same positions of the first Ahead blocks at `next`.
template <class T, int R, int S, int Ahead>
[[gnu::always_inline]] inline void product(V16 (&sums)[R][S], const float* left, std::int64_t row,
                                           const typename T::Stored* right, std::int64_t block, int inner,
                                           const typename T::Stored* next) {
    constexpr int kRead = 16 * T::kStep;
    const auto prefetch_next = [&](int at) {
        times<Ahead>([&](auto s) { __builtin_prefetch(next + s * block + at * kRead); });
    };
    if constexpr (T::kStep == 1) {
        for (int i = 0; i < inner; ++i) {
            prefetch_next(i);
            V16 operand[S];
            times<S>([&](auto s) { operand[s] = T::widen(right + s * block + 16 * i); });
            times<R>([&](auto r) {
                const V16 value = set1(left[r * row + i]);
                times<S>([&](auto s) { sums[r][s] = fma(value, operand[s], sums[r][s]); });
            });
        }
    } else if constexpr (kInPairs<T>) {
#ifdef CHUNKBENCH_PAIR_PRODUCTS
        // The left side holds pairs of bfloat16 numbers; a pair has the size of a float.
        for (int i = 0; i < inner / 2; ++i) {
            prefetch_next(i);
            Pairs operand[S];
            times<S>([&](auto s) { operand[s] = sixteen_pairs(right + s * block + 32 * i); });
            times<R>([&](auto r) {
                const Pairs value = one_pair(left + r * row + i);
                times<S>([&](auto s) { sums[r][s] = add_products(sums[r][s], value, operand[s]); });
            });
        }
#endif
    } else {
        for (int i = 0; i < inner; i += 2) {
            prefetch_next(i / 2);
            V16 first[S], second[S];
            times<S>([&](auto s) { load_pairs(right + s * block + 16 * i, first[s], second[s]); });
            times<R>([&](auto r) {
                const V16 even = set1(left[r * row + i]), odd = set1(left[r * row + i + 1]);
                times<S>([&](auto s) { sums[r][s] = fma(even, first[s], sums[r][s]); });
                times<S>([&](auto s) { sums[r][s] = fma(odd, second[s], sums[r][s]); });
            });
        }
    }
}

// out[r][16 * s ..] = (add ? out : 0) + product, for R rows and S blocks.
template <class T, int R, int S, int Ahead>
inline void tile(const float* left, std::int64_t row, const typename T::Stored* right, std::int64_t block, int inner,
                 float* out, std::int64_t out_row, bool add, const typename T::Stored* next) {
    V16 sums[R][S];
    if (add) {
        times<R>([&](auto r) { times<S>([&](auto s) { sums[r][s] = load(out + r * out_row + 16 * s); }); });
    } else {
        times<R>([&](auto r) { times<S>([&](auto s) { sums[r][s] = set1(0.0f); }); });
    }
    product<T, R, S, Ahead>(sums, left, row, right, block, inner, next);
    times<R>([&](auto r) { times<S>([&](auto s) { store(out + r * out_row + 16 * s, sums[r][s]); }); });
}

// `tile` for `count` rows, at most R.
template <class T, int R, int S, int Ahead>
inline void rows_at_once(int count, const float* left, std::int64_t row, const typename T::Stored* right,
                         std::int64_t block, int inner, float* out, std::int64_t out_row, bool add,
                         const typename T::Stored* next) {
    if (count == R) {
        tile<T, R, S, Ahead>(left, row, right, block, inner, out, out_row, add, next);
    } else if constexpr (R > 1) {
        rows_at_once<T, R - 1, S, Ahead>(count, left, row, right, block, inner, out, out_row, add, next);
    }
}

// `tile` for any number of rows, in tiles of nearly equal size. With Ahead the first tiles prefetch the blocks at
// `next`, which all tiles of the next call read. If there are several tiles, each prefetches one block, because memory
// delivers no faster.
template <class T, int S, bool Ahead>
inline void rows_of_blocks(const float* left, std::int64_t row, const typename T::Stored* right, std::int64_t block,
                           int inner, int rows, float* out, std::int64_t out_row, bool add,
                           const typename T::Stored* next) {
    constexpr int kMaxRows = T::kStep == 1 || kInPairs<T> ? kRows : kPairRows;
    const int tiles = (rows + kMaxRows - 1) / kMaxRows;
    for (int n = 0; n < tiles; ++n) {
        const int count = (rows + tiles - n - 1) / (tiles - n);
        if (!Ahead || n >= S) {
            rows_at_once<T, kMaxRows, S, 0>(count, left, row, right, block, inner, out, out_row, add, next);
        } else if (tiles == 1) {
            rows_at_once<T, kMaxRows, S, S>(count, left, row, right, block, inner, out, out_row, add, next);
        } else {
            rows_at_once<T, kMaxRows, S, 1>(count, left, row, right, block, inner, out, out_row, add, next + n * block);
        }
        rows -= count;
        left += count * row;
        out += count * out_row;
    }
}

// Prefetch the first lines of every page of `bytes` bytes. The hardware prefetcher stops at the end of a page, and
// these lines start it again on the next page.
inline void open_pages(const void* from, std::int64_t bytes) {
    constexpr int kPage = 4096, kLine = 64, kLines = 4;
    const auto* at = static_cast<const char*>(from);
    for (const char* end = at + bytes; at < end; at += kPage) {
        times<kLines>([&](auto n) { __builtin_prefetch(at + n * kLine); });
    }
}

// out[rows][16 * blocks] = (add ? out : 0) + left[rows][inner] * right[blocks][inner][16]. With Ahead, prefetches the
// data at `next`, which has the layout of `right`.
template <class T, bool Ahead>
inline void multiply_blocks(const float* left, std::int64_t row, int rows, const typename T::Stored* right,
                            std::int64_t block, int blocks, int inner, float* out, std::int64_t out_row, bool add,
                            const typename T::Stored* next) {
    int at = 0;
    if (rows <= kStreamRows) {  // several blocks at a time give enough independent sums
        for (; at + kStreams <= blocks; at += kStreams) {
            rows_at_once<T, kStreamRows, kStreams, Ahead ? kStreams : 0>(
                rows, left, row, right + at * block, block, inner, out + 16 * at, out_row, add, next + at * block);
        }
    }
    for (; at + kBlocks <= blocks; at += kBlocks) {
        rows_of_blocks<T, kBlocks, Ahead>(left, row, right + at * block, block, inner, rows, out + 16 * at, out_row,
                                          add, next + at * block);
    }
    for (; at < blocks; ++at) {
        rows_of_blocks<T, 1, Ahead>(left, row, right + at * block, block, inner, rows, out + 16 * at, out_row, add,
                                    next + at * block);
    }
}

// `multiply_blocks` with or without prefetching. `streaming`: `right` and `next` are both long reads. A single row only
// waits for memory, and then the hardware prefetcher alone is fastest. With more rows, or if the numbers must be
// widened first, software prefetching keeps the reads going during the arithmetic (docs/cpu-kernels.md has figures).
template <class T>
inline void multiply(const float* left, std::int64_t row, int rows, const typename T::Stored* right, std::int64_t block,
                     int blocks, int inner, float* out, std::int64_t out_row, bool add, const typename T::Stored* next,
                     bool streaming) {
    constexpr bool kWidens = sizeof(typename T::Stored) == 2 && !kInPairs<T>;
    if (streaming) open_pages(next, blocks * inner * 16 * sizeof(*next));
    if (streaming && !kWidens && rows == 1) {
        multiply_blocks<T, false>(left, row, rows, right, block, blocks, inner, out, out_row, add, next);
    } else {
        multiply_blocks<T, true>(left, row, rows, right, block, blocks, inner, out, out_row, add, next);
    }
}

// Sixteen query values from index j on as floats, read from the left side of a product.
template <class T>
inline V16 from_left(const float* values, int j) {
    if constexpr (kInPairs<T>) {
        return T::widen(reinterpret_cast<const typename T::Stored*>(values) + j);
    } else {
        return load(values + j);
    }
}

// Prefetch `count` numbers.
template <class Stored>
inline void prefetch(const Stored* from, std::int64_t count) {
    constexpr std::int64_t kLine = 64 / sizeof(Stored);
    for (std::int64_t i = 0; i < count; i += kLine) __builtin_prefetch(from + i);
}

// Scores of the first `tokens` tokens of a partial block of K, stored as [16][d]; -inf for the other tokens. Prefetches
// the same tokens of the block at `next`.
template <class T>
inline void scores_of_rows(const float* left, int d, int rows, const typename T::Stored* block, int tokens, float* out,
                           std::int64_t out_row, const typename T::Stored* next) {
    prefetch(next, tokens * d);
    for (int r = 0; r < rows; ++r) {
        V16 scores = set1(-kInfinity);
        for (int t = 0; t < tokens; ++t) {
            V16 sums = set1(0.0f);
            for (int j = 0; j < d; j += 16)
                sums = fma(from_left<T>(left + r * d, j), T::widen(block + t * d + j), sums);
            scores = with_lane(scores, t, sum(sums));
        }
        store(out + r * out_row, scores);
    }
}

// Write sixteen values from index i of a row on as the left side of a product: as floats, or rounded to bfloat16.
template <class T>
inline void put_left(float* row, int i, V16 values) {
    if constexpr (kInPairs<T>) {
#ifdef CHUNKBENCH_PAIR_PRODUCTS
        store_rounded(reinterpret_cast<std::uint16_t*>(row) + i, values);
#endif
    } else {
        store(row + i, values);
    }
}

// Weights if the largest score is +inf: 1 for every score of +inf, 0 for the others. Adds them to `weights`.
template <class T>
inline void weigh_infinite(float* scores, int count, float* weights) {
    for (int i = 0; i < count; i += 16) {
        float lanes[16];
        for (int j = 0; j < 16; ++j) {
            const float score = scores[i + j];
            lanes[j] = score != score ? score : score == kInfinity ? 1.0f : 0.0f;
            weights[j] += lanes[j];
        }
        put_left<T>(scores, i, load(lanes));
    }
}

// Replace the scores of one row by weights 2^(scale * (score - largest)), as the left side of a product. Adds the
// weights to `weights`, lane by lane. If the largest score grows, scales the sums so far to the new one.
template <class T>
inline void weigh(float* scores, int count, float scale, float& peak, float* weights, float* output, int d) {
    const float new_peak = largest(scores, count);
    if (new_peak > peak) {
        const V16 shrink = set1(exp2_difference(scale * peak, scale * new_peak));
        peak = new_peak;
        store(weights, mul(load(weights), shrink));
        for (int i = 0; i < d; i += 16) store(output + i, mul(load(output + i), shrink));
    }
    if (peak == kInfinity) return weigh_infinite<T>(scores, count, weights);
    const float base = peak < kLowest ? kLowest : peak;
    const V16 offset = set1(-scale * base), factor = set1(scale);
    V16 total = load(weights);
    for (int i = 0; i < count; i += 16) {
        const V16 weight = exp2(fma(load(scores + i), factor, offset));
        put_left<T>(scores, i, weight);  // pairs need half the space, so this overwrites no unread score
        total = add(total, weight);
    }
    store(weights, total);
}

// Write one query as the left side of a product.
template <class T>
inline void take_query(const typename T::Stored* q, int d, float* to) {
    if constexpr (kInPairs<T>) {
        __builtin_memcpy(to, q, d * sizeof(*q));
    } else {
        for (int j = 0; j < d; j += 16) store(to + j, T::widen(q + j));
    }
}

// Running results of one row and head: weighted sum of V, largest score and, lane by lane, the sum of weights.
struct State {
    float* output;
    float* weights;
    float& peak;
};

// Start with the partial results of other items for this row and head (section 3.2 of the paper: fold (O', m', n') into
// (O, m, n)), or with zero.
inline void start(const Shape& shape, const Work& work, const Item& item, int head, float scale, State state) {
    const int d = shape.head_dim;
    for (std::int64_t n = 0; n < item.folds; ++n) {
        const std::int64_t place = work.folds[item.first_fold + n] * shape.heads + head;
        const float* stats = work.partial_stats + 2 * place;
        const float* partial = work.partial_outputs + place * d;
        if (n == 0) {
            state.peak = stats[0];
            store(state.weights, first_lane(stats[1]));
            for (int j = 0; j < d; j += 16) store(state.output + j, load(partial + j));
            continue;
        }
        const float new_peak = stats[0] > state.peak ? stats[0] : state.peak;
        const float part_scale = exp2_difference(scale * stats[0], scale * new_peak);
        const V16 part_share = set1(part_scale),
                  own_share = set1(exp2_difference(scale * state.peak, scale * new_peak));
        for (int j = 0; j < d; j += 16) {
            store(state.output + j, fma(part_share, load(partial + j), mul(own_share, load(state.output + j))));
        }
        store(state.weights, fma(own_share, load(state.weights), first_lane(part_scale * stats[1])));
        state.peak = new_peak;
    }
    if (item.folds > 0) return;
    state.peak = -kInfinity;
    store(state.weights, set1(0.0f));
    for (int j = 0; j < d; j += 16) store(state.output + j, set1(0.0f));
}

// Number of full chunks of an item. At most one partial chunk follows them.
inline std::int64_t full_chunks(const Shape& shape, const Work& work, const Item& item) {
    return item.chunks - (item.tail_row >= 0 && work.last_tokens[item.tail_row] < shape.chunk_size);
}

// Prefetch the first `tokens` tokens of a chunk and head. The hardware prefetcher does not notice such short reads.
template <class Stored>
inline void prefetch_tokens(const Stored* keys, const Stored* values, int tokens, int c, int d) {
    prefetch(keys, tokens * d);
    for (int block = 0; block < d / 16; ++block) prefetch(values + block * 16 * c, tokens * 16);
}

template <class T>
void run_item(const Shape& shape, const Work& work, const Item& item, const Item* next, int kv_head, float* scratch) {
    using Stored = typename T::Stored;
    const int d = shape.head_dim, c = shape.chunk_size, group = shape.heads / shape.kv_heads;
    const int rows = static_cast<int>(item.rows) * group;
    const std::int64_t head_size = static_cast<std::int64_t>(c) * d;
    float* queries = scratch;
    float* outputs = queries + static_cast<std::int64_t>(rows) * d;
    float* scores = outputs + static_cast<std::int64_t>(rows) * d;
    float* weights = scores + static_cast<std::int64_t>(rows) * c;
    float* peaks = weights + 16 * static_cast<std::int64_t>(rows);
    const float scale = work.scale * kLog2E;

    for (int i = 0; i < rows; ++i) {
        const std::int64_t row = work.rows[item.first_row + i / group];
        const int head = kv_head * group + i % group;
        take_query<T>(static_cast<const Stored*>(work.q) + (row * shape.heads + head) * d, d, queries + i * d);
        start(shape, work, item, head, scale, {outputs + i * d, weights + 16 * i, peaks[i]});
    }
    const auto keys_of = [&](std::int64_t chunk) {
        return reinterpret_cast<const Stored*>(work.chunk_keys[chunk] + work.shift) + kv_head * head_size;
    };
    const auto values_of = [&](std::int64_t chunk) {
        return reinterpret_cast<const Stored*>(work.chunk_values[chunk] + work.shift) + kv_head * head_size;
    };
    const std::int64_t full = full_chunks(shape, work, item), end = item.first_chunk + full;
    const std::int64_t next_full = next == nullptr ? 0 : full_chunks(shape, work, *next);
    for (std::int64_t chunk = item.first_chunk; chunk < item.first_chunk + item.chunks; ++chunk) {
        const int tokens = chunk < end ? c : static_cast<int>(work.last_tokens[item.tail_row]);
        const Stored *keys = keys_of(chunk), *values = values_of(chunk);
        // What to prefetch: during K of a full chunk its V, during its V the K of the next full chunk. During a partial
        // chunk: K and V of the next item's partial chunk, if that item has no full chunk.
        const Stored *during_keys = keys, *during_values = values;
        if (chunk < end) {
            during_keys = values;
            if (chunk + 1 < end) during_values = keys_of(chunk + 1);
            if (chunk + 1 == end && next_full > 0) during_values = keys_of(next->first_chunk);
            if (chunk + 1 == end && full < item.chunks) {
                prefetch_tokens(keys_of(end), values_of(end), static_cast<int>(work.last_tokens[item.tail_row]), c, d);
            }
        } else if (next != nullptr && next_full == 0 && next->chunks > 0) {
            during_keys = keys_of(next->first_chunk);
            during_values = values_of(next->first_chunk);
        }
        const int blocks = tokens / 16, remainder = tokens % 16;
        multiply<T>(queries, d, rows, keys, 16 * d, blocks, d, scores, c, false, during_keys, chunk < end);
        if (remainder > 0) {
            const std::int64_t offset = static_cast<std::int64_t>(blocks) * 16 * d;
            scores_of_rows<T>(queries, d, rows, keys + offset, remainder, scores + blocks * 16, c,
                              during_keys + offset);
        }
        for (int i = 0; i < rows; ++i) {
            weigh<T>(scores + static_cast<std::int64_t>(i) * c, (tokens + 15) / 16 * 16, scale, peaks[i],
                     weights + 16 * i, outputs + i * d, d);
        }
        // Pairs: an unpaired last token has a partner with weight zero; packing sets this partner to zero.
        const int inner = (tokens + T::kStep - 1) / T::kStep * T::kStep;
        multiply<T>(scores, c, rows, values, 16 * c, d / 16, inner, outputs, d, true, during_values, chunk < end);
    }
    for (int i = 0; i < rows; ++i) {
        const int head = kv_head * group + i % group;
        const float total = sum(load(weights + 16 * i));
        if (item.first_partial < 0) {
            const std::int64_t row = work.rows[item.first_row + i / group];
            auto* out = static_cast<Stored*>(work.out) + (row * shape.heads + head) * d;
            const V16 inverse = set1(1.0f / total);
            for (int j = 0; j < d; j += 16) T::put(out + j, mul(load(outputs + i * d + j), inverse));
        } else {
            const std::int64_t place = (item.first_partial + i / group) * shape.heads + head;
            for (int j = 0; j < d; j += 16) store(work.partial_outputs + place * d + j, load(outputs + i * d + j));
            work.partial_stats[2 * place] = peaks[i];
            work.partial_stats[2 * place + 1] = total;
        }
    }
}

void item(const Shape& shape, const Work& work, const Item& current, const Item* next, int kv_head, float* scratch) {
    switch (shape.dtype) {
        case Dtype::float32: return run_item<Float32>(shape, work, current, next, kv_head, scratch);
        case Dtype::float16: return run_item<Float16>(shape, work, current, next, kv_head, scratch);
        case Dtype::bfloat16: return run_item<Bfloat16>(shape, work, current, next, kv_head, scratch);
    }
}

}  // namespace
}  // namespace CHUNKBENCH_NAMESPACE
}  // namespace chunkbench
