// The loops of decode attention, compiled once for every instruction set: the including file names the namespace
// (CHUNKBENCH_NAMESPACE) whose vec_*.h it has included. Nothing here may call inline functions of the standard library:
// the linker would be free to keep this file's copy of them, compiled for a CPU that is not the one at hand.
#include <cstdint>

#include "attention.h"

namespace chunkbench {
namespace CHUNKBENCH_NAMESPACE {
namespace {

constexpr float kInfinity = __builtin_inff();
constexpr float kLeast = -3.4028234663852886e38f;  // the smallest finite float: a maximum that -inf can be taken from
constexpr float kExpFrom = -87.3365447505f;        // exp of less is below the normal numbers: 0

// exp(x) for x <= 0, 0 for -inf, NaN for NaN; relative error below 2e-7. exp(x) = 2^n exp(r), |r| <= ln(2)/2, by the
// first terms of the series of exp(r).
inline V16 exp(V16 x) {
    const V16 clamped = max(set1(kExpFrom), x);
    const V16 n = round(mul(clamped, set1(1.44269504088896341f)));
    V16 r = fma(n, set1(-0.693145751953125f), clamped);
    r = fma(n, set1(-1.42860682030941723212e-6f), r);
    V16 y = set1(1.0f / 5040.0f);
    y = fma(y, r, set1(1.0f / 720.0f));
    y = fma(y, r, set1(1.0f / 120.0f));
    y = fma(y, r, set1(1.0f / 24.0f));
    y = fma(y, r, set1(1.0f / 6.0f));
    y = fma(y, r, set1(0.5f));
    y = fma(y, r, set1(1.0f));
    y = fma(y, r, set1(1.0f));
    return keep_from(scale_by_power(y, n), x, set1(kExpFrom));
}

inline float exp_of(float x) {
    float lanes[16];
    store(lanes, exp(set1(x)));
    return lanes[0];
}

// exp(a - b), and 1 where both are the same infinity.
inline float exp_difference(float a, float b) { return a == b ? 1.0f : exp_of(a - b); }

// Largest of count values, a multiple of 16; NaN does not count (it stays NaN as a weight).
inline float largest(const float* values, int count) {
    V16 found = set1(-kInfinity);
    for (int i = 0; i < count; i += 16) found = max(load(values + i), found);
    return top(found);
}

// How K and V of a dtype are read, kStep values of the index that a product sums over at a time.
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

inline float bfloat16_to_float(std::uint16_t half) {
    const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}

inline std::uint16_t float_to_bfloat16(float value) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
    return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

struct Bfloat16 {
    using Stored = std::uint16_t;
    static constexpr int kStep = 2;
    static V16 widen(const Stored* p) {
        float lanes[16];
        for (int i = 0; i < 16; ++i) lanes[i] = bfloat16_to_float(p[i]);
        return load(lanes);
    }
    static void put(Stored* p, V16 x) {
        float lanes[16];
        store(lanes, x);
        for (int i = 0; i < 16; ++i) p[i] = float_to_bfloat16(lanes[i]);
    }
};

// sums[r][s] += left[r] * right: R rows of values, `inner` long, times S blocks of `inner` times sixteen numbers.
// Rows lie `row` apart, blocks `block`. With Ahead, as many numbers at `next` are brought into the cache.
template <class T, int R, int S, bool Ahead>
inline void product(V16 (&sums)[R][S], const float* left, std::int64_t row, const typename T::Stored* right,
                    std::int64_t block, int inner, const typename T::Stored* next) {
    if constexpr (T::kStep == 1) {
        for (int i = 0; i < inner; ++i) {
            if constexpr (Ahead) {
                for (int s = 0; s < S; ++s) __builtin_prefetch(next + 16 * (i * S + s));
            }
            V16 operand[S];
            for (int s = 0; s < S; ++s) operand[s] = T::widen(right + s * block + 16 * i);
            for (int r = 0; r < R; ++r) {
                const V16 value = set1(left[r * row + i]);
                for (int s = 0; s < S; ++s) sums[r][s] = fma(value, operand[s], sums[r][s]);
            }
        }
    } else if constexpr (kPairProducts) {
#ifdef CHUNKBENCH_PAIR_PRODUCTS
        // The left side holds pairs of bfloat16 numbers, two to a float's place.
        const auto* pairs = reinterpret_cast<const std::uint32_t*>(left);
        for (int i = 0; i < inner / 2; ++i) {
            if constexpr (Ahead) {
                for (int s = 0; s < S; ++s) __builtin_prefetch(next + 32 * (i * S + s));
            }
            for (int r = 0; r < R; ++r) {
                std::uint32_t pair;
                __builtin_memcpy(&pair, pairs + r * row + i, 4);
                for (int s = 0; s < S; ++s) {
                    sums[r][s] = add_pair_products(sums[r][s], pair, right + s * block + 32 * i);
                }
            }
        }
#endif
    } else {
        for (int i = 0; i < inner; i += 2) {
            if constexpr (Ahead) {
                for (int s = 0; s < S; ++s) __builtin_prefetch(next + 16 * (i * S + 2 * s));
            }
            V16 first[S], second[S];
            for (int s = 0; s < S; ++s) load_pairs(right + s * block + 16 * i, first[s], second[s]);
            for (int r = 0; r < R; ++r) {
                const V16 one = set1(left[r * row + i]), other = set1(left[r * row + i + 1]);
                for (int s = 0; s < S; ++s) sums[r][s] = fma(one, first[s], sums[r][s]);
                for (int s = 0; s < S; ++s) sums[r][s] = fma(other, second[s], sums[r][s]);
            }
        }
    }
}

// out[r][16 * s ..] = (add ? out : 0) + product, for R rows and S blocks.
template <class T, int R, int S, bool Ahead>
inline void tile(const float* left, std::int64_t row, const typename T::Stored* right, std::int64_t block, int inner,
                 float* out, std::int64_t out_row, bool add, const typename T::Stored* next) {
    V16 sums[R][S];
    for (int r = 0; r < R; ++r) {
        for (int s = 0; s < S; ++s) sums[r][s] = add ? load(out + r * out_row + 16 * s) : set1(0.0f);
    }
    product<T, R, S, Ahead>(sums, left, row, right, block, inner, next);
    for (int r = 0; r < R; ++r) {
        for (int s = 0; s < S; ++s) store(out + r * out_row + 16 * s, sums[r][s]);
    }
}

// The same for `count` rows, at most R.
template <class T, int R, int S, bool Ahead>
inline void rows_at_once(int count, const float* left, std::int64_t row, const typename T::Stored* right,
                         std::int64_t block, int inner, float* out, std::int64_t out_row, bool add,
                         const typename T::Stored* next) {
    if (count == R) {
        tile<T, R, S, Ahead>(left, row, right, block, inner, out, out_row, add, next);
    } else if constexpr (R > 1) {
        rows_at_once<T, R - 1, S, Ahead>(count, left, row, right, block, inner, out, out_row, add, next);
    }
}

// The same for any number of rows, in tiles of nearly equal size. The first brings what lies at `next` into the cache,
// which all tiles of the next call read.
template <class T, int S>
inline void rows_of_blocks(const float* left, std::int64_t row, const typename T::Stored* right, std::int64_t block,
                           int inner, int rows, float* out, std::int64_t out_row, bool add,
                           const typename T::Stored* next) {
    constexpr int kMost = T::kStep == 1 || kPairProducts ? kRows : kPairRows;
    bool first = true;
    for (int tiles = (rows + kMost - 1) / kMost; tiles > 0; --tiles) {
        const int count = (rows + tiles - 1) / tiles;
        if (first) {
            rows_at_once<T, kMost, S, true>(count, left, row, right, block, inner, out, out_row, add, next);
        } else {
            rows_at_once<T, kMost, S, false>(count, left, row, right, block, inner, out, out_row, add, next);
        }
        first = false;
        rows -= count;
        left += count * row;
        out += count * out_row;
    }
}

// out[rows][16 * blocks] = (add ? out : 0) + left[rows][inner] * right[blocks][inner][16]. What will be multiplied
// after that lies at `next`.
template <class T>
inline void multiply(const float* left, std::int64_t row, int rows, const typename T::Stored* right, std::int64_t block,
                     int blocks, int inner, float* out, std::int64_t out_row, bool add,
                     const typename T::Stored* next) {
    int at = 0;
    if (rows == 1) {
        // One row reads K and V from memory: several blocks at a time keep enough sums under way. Where numbers are
        // widened first, arithmetic takes half as long as reading, and reading has to go on meanwhile; elsewhere the
        // CPU's own prefetching is better left alone (docs/cpu-kernels.md has figures).
        constexpr bool kAhead = sizeof(typename T::Stored) == 2 && !(T::kStep == 2 && kPairProducts);
        for (; at + kStreams <= blocks; at += kStreams) {
            tile<T, 1, kStreams, kAhead>(left, row, right + at * block, block, inner, out + 16 * at, out_row, add,
                                         next + 16 * at * inner);
        }
        for (; at + 2 <= blocks; at += 2) {
            tile<T, 1, 2, kAhead>(left, row, right + at * block, block, inner, out + 16 * at, out_row, add,
                                  next + 16 * at * inner);
        }
    }
    for (; at + kBlocks <= blocks; at += kBlocks) {
        const auto* coming = at + kBlocks < blocks ? right + (at + kBlocks) * block : next;
        rows_of_blocks<T, kBlocks>(left, row, right + at * block, block, inner, rows, out + 16 * at, out_row, add,
                                   coming);
    }
    for (; at < blocks; ++at) {
        const auto* coming = at + 1 < blocks ? right + (at + 1) * block : next;
        rows_of_blocks<T, 1>(left, row, right + at * block, block, inner, rows, out + 16 * at, out_row, add, coming);
    }
}

// Values that `as_left` may have rounded to bfloat16 pairs, sixteen from the j-th on, as floats.
template <class T>
inline V16 from_left(const float* values, int j) {
    if constexpr (T::kStep == 2 && kPairProducts) {
        return T::widen(reinterpret_cast<const typename T::Stored*>(values) + j);
    } else {
        return load(values + j);
    }
}

// Scores of the `tokens` first tokens of a block of K that is not full: it lies as [16][d].
template <class T>
inline void scores_of_rows(const float* left, int d, int rows, const typename T::Stored* block, int tokens, float* out,
                           std::int64_t out_row) {
    for (int r = 0; r < rows; ++r) {
        for (int t = 0; t < tokens; ++t) {
            V16 sums = set1(0.0f);
            for (int j = 0; j < d; j += 16)
                sums = fma(from_left<T>(left + r * d, j), T::widen(block + t * d + j), sums);
            out[r * out_row + t] = sum(sums);
        }
    }
}

// Scores of one row -> weights exp(scale * (score - largest)), zero beyond `tokens`; adds their sum to `weights`. What
// has been summed so far is scaled to the new largest score.
inline void weigh(float* scores, int tokens, float scale, float& peak, float& weights, float* output, int d) {
    const int padded = (tokens + 15) / 16 * 16;
    for (int i = tokens; i < padded; ++i) scores[i] = -kInfinity;
    const float found = largest(scores, padded);
    if (found > peak) {
        const float shrink = exp_difference(scale * peak, scale * found);
        peak = found;
        weights *= shrink;
        for (int i = 0; i < d; i += 16) store(output + i, mul(load(output + i), set1(shrink)));
    }
    if (peak == kInfinity) {  // the weight of infinite scores is all there is
        for (int i = 0; i < padded; ++i) {
            const bool is_nan = scores[i] != scores[i];
            if (!is_nan) scores[i] = scores[i] == kInfinity ? 1.0f : 0.0f;
            weights += scores[i];
        }
        return;
    }
    const float base = peak < kLeast ? kLeast : peak;
    const V16 offset = set1(-scale * base), factor = set1(scale);
    V16 total = set1(0.0f);
    for (int i = 0; i < padded; i += 16) {
        const V16 weight = exp(fma(load(scores + i), factor, offset));
        store(scores + i, weight);
        total = add(total, weight);
    }
    weights += sum(total);
}

// Values as the left side of a product: floats as they are, or rounded to bfloat16 pairs in place.
template <class T>
inline void as_left(float* values, int count) {
    if constexpr (T::kStep == 2 && kPairProducts) {
        auto* halves = reinterpret_cast<std::uint16_t*>(values);
        for (int i = 0; i < count; ++i) {
            float value;
            __builtin_memcpy(&value, values + i, 4);
            const std::uint16_t half = float_to_bfloat16(value);
            __builtin_memcpy(halves + i, &half, 2);
        }
    }
}

// What other items have found for one row and head becomes the start of this one (section 3.2 of the paper: fold
// (O', m', n') into (O, m, n)).
inline void fold(const Shape& shape, const Work& work, const Item& item, int head, float* output, float& peak,
                 float& weights) {
    const int d = shape.head_dim;
    for (std::int64_t n = 0; n < item.folds; ++n) {
        const std::int64_t place = work.folds[item.first_fold + n] * shape.heads + head;
        const float* stats = work.partial_stats + 2 * place;
        const float* partial = work.partial_outputs + place * d;
        const float most = stats[0] > peak ? stats[0] : peak;
        const float theirs = exp_difference(work.scale * stats[0], work.scale * most);
        const float ours = exp_difference(work.scale * peak, work.scale * most);
        const V16 their_share = set1(theirs), our_share = set1(ours);
        for (int j = 0; j < d; j += 16) {
            store(output + j, fma(their_share, load(partial + j), mul(our_share, load(output + j))));
        }
        weights = theirs * stats[1] + ours * weights;
        peak = most;
    }
}

// A context of a few tokens is too short a read for the CPU to see it coming: bring that of the next item.
template <class T>
inline void bring(const Shape& shape, const Work& work, const Item& item, int kv_head) {
    using Stored = typename T::Stored;
    if (item.chunks != 1 || item.tail_row < 0 || work.last_tokens[item.tail_row] >= 16) return;
    constexpr int kLine = 64 / sizeof(Stored);
    const int d = shape.head_dim, c = shape.chunk_size, tokens = static_cast<int>(work.last_tokens[item.tail_row]);
    const std::int64_t head = static_cast<std::int64_t>(kv_head) * c * d;
    const auto* keys = reinterpret_cast<const Stored*>(work.chunk_keys[item.first_chunk]) + head;
    const auto* values = reinterpret_cast<const Stored*>(work.chunk_values[item.first_chunk]) + head;
    for (int i = 0; i < tokens * d; i += kLine) __builtin_prefetch(keys + i);
    for (int block = 0; block < d / 16; ++block) {
        for (int i = 0; i < tokens * 16; i += kLine) __builtin_prefetch(values + block * 16 * c + i);
    }
}

template <class T>
void run_item(const Shape& shape, const Work& work, const Item& item, const Item* next, int kv_head, float* scratch) {
    if (next != nullptr) bring<T>(shape, work, *next, kv_head);
    using Stored = typename T::Stored;
    const int d = shape.head_dim, c = shape.chunk_size, group = shape.heads / shape.kv_heads;
    const int rows = static_cast<int>(item.rows) * group;
    const std::int64_t head_size = static_cast<std::int64_t>(c) * d;
    float* queries = scratch;
    float* outputs = queries + static_cast<std::int64_t>(rows) * d;
    float* scores = outputs + static_cast<std::int64_t>(rows) * d;
    float* peaks = scores + static_cast<std::int64_t>(rows) * c;
    float* weights = peaks + rows;

    for (int i = 0; i < rows; ++i) {
        const std::int64_t row = work.rows[item.first_row + i / group];
        const auto* q = static_cast<const Stored*>(work.q) + (row * shape.heads + kv_head * group + i % group) * d;
        for (int j = 0; j < d; j += 16) store(queries + i * d + j, T::widen(q + j));
        as_left<T>(queries + i * d, d);
        for (int j = 0; j < d; j += 16) store(outputs + i * d + j, set1(0.0f));
        peaks[i] = -kInfinity;
        weights[i] = 0.0f;
        fold(shape, work, item, kv_head * group + i % group, outputs + i * d, peaks[i], weights[i]);
    }
    for (std::int64_t n = 0; n < item.chunks; ++n) {
        const bool last = n + 1 == item.chunks && item.tail_row >= 0;
        const int tokens = last ? static_cast<int>(work.last_tokens[item.tail_row]) : c;
        const std::int64_t chunk = item.first_chunk + n;
        const auto* keys = reinterpret_cast<const Stored*>(work.chunk_keys[chunk]) + kv_head * head_size;
        const auto* values = reinterpret_cast<const Stored*>(work.chunk_values[chunk]) + kv_head * head_size;
        const int full = tokens / 16, rest = tokens % 16;
        multiply<T>(queries, d, rows, keys, 16 * d, full, d, scores, c, false, values);
        if (rest > 0) scores_of_rows<T>(queries, d, rows, keys + full * 16 * d, rest, scores + full * 16, c);
        for (int i = 0; i < rows; ++i) {
            float* row = scores + static_cast<std::int64_t>(i) * c;
            weigh(row, tokens, work.scale, peaks[i], weights[i], outputs + i * d, d);
            as_left<T>(row, (tokens + 15) / 16 * 16);
        }
        // Pairs: an odd last token has a partner that was never written or is zero, with weight zero.
        const int inner = (tokens + T::kStep - 1) / T::kStep * T::kStep;
        const bool more = n + 1 < item.chunks;
        const auto* coming =
            more ? reinterpret_cast<const Stored*>(work.chunk_keys[chunk + 1]) + kv_head * head_size : keys;
        multiply<T>(scores, c, rows, values, 16 * c, d / 16, inner, outputs, d, true, coming);
    }
    for (int i = 0; i < rows; ++i) {
        const int head = kv_head * group + i % group;
        if (item.first_partial < 0) {
            const std::int64_t row = work.rows[item.first_row + i / group];
            auto* out = static_cast<Stored*>(work.out) + (row * shape.heads + head) * d;
            const V16 inverse = set1(1.0f / weights[i]);
            for (int j = 0; j < d; j += 16) T::put(out + j, mul(load(outputs + i * d + j), inverse));
        } else {
            const std::int64_t place = (item.first_partial + i / group) * shape.heads + head;
            for (int j = 0; j < d; j += 16) store(work.partial_outputs + place * d + j, load(outputs + i * d + j));
            work.partial_stats[2 * place] = peaks[i];
            work.partial_stats[2 * place + 1] = weights[i];
        }
    }
}

void item(const Shape& shape, const Work& work, const Item& one, const Item* next, int kv_head, float* scratch) {
    switch (shape.dtype) {
        case Dtype::float32: return run_item<Float32>(shape, work, one, next, kv_head, scratch);
        case Dtype::float16: return run_item<Float16>(shape, work, one, next, kv_head, scratch);
        case Dtype::bfloat16: return run_item<Bfloat16>(shape, work, one, next, kv_head, scratch);
    }
}

}  // namespace
}  // namespace CHUNKBENCH_NAMESPACE
}  // namespace chunkbench
