// The loops of decode attention, compiled once for every instruction set (CMakeLists.txt): CHUNKBENCH_VECTORS is its
// vec_*.h, CHUNKBENCH_NAMESPACE that header's namespace. Without them: the portable loops.
//
// Nothing here may call inline functions of the standard library: the linker might keep the copy from this file, which
// is compiled for instructions that the CPU may lack.
#ifndef CHUNKBENCH_VECTORS
#define CHUNKBENCH_VECTORS "vec_portable.h"
#define CHUNKBENCH_NAMESPACE portable
#define CHUNKBENCH_LOOPS loops_portable
#endif
#include CHUNKBENCH_VECTORS

#include <cstdint>

#include "attention.h"
#include "linear_loops.h"
#include "probe_loops.h"
#include "products.h"
#include "softmax.h"
#include "tile_products.h"

namespace chunkbench {
namespace CHUNKBENCH_NAMESPACE {
namespace {

// Sixteen query values from index j on as floats, read from the left side of a product.
template <class T>
inline V16 from_left(const float* values, int j) {
    if constexpr (kInPairs<T>) {
        return T::widen(reinterpret_cast<const typename T::Stored*>(values) + j);
    } else {
        return load(values + j);
    }
}

// Scores of the first `tokens` tokens of a partial block of K, stored as [16][d]; -inf for the other tokens.
template <class T>
inline void scores_of_tokens(const Rows& rows, int d, const typename T::Stored* block, int tokens) {
    for (int r = 0; r < rows.count; ++r) {
        V16 scores = set1(-kInfinity);
        for (int t = 0; t < tokens; ++t) {
            V16 sums = set1(0.0f);
            for (int j = 0; j < d; j += 16)
                sums = fma(from_left<T>(rows.left + r * rows.row, j), T::widen(block + t * d + j), sums);
            scores = with_lane(scores, t, sum(sums));
        }
        store(rows.out + r * rows.out_row, scores);
    }
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

// Start with the running results of the row, if the call has them and the item writes results, then fold in the partial
// results of other items for this row and head (section 3.2 of the paper: fold (O', m', n') into (O, m, n)), or start
// with zero.
inline void start(const Shape& shape, const Work& work, const Item& item, std::int64_t row, int head, float scale,
                  State state) {
    const int d = shape.head_dim;
    const std::int64_t before = item.first_partial < 0 && work.running.outputs != nullptr ? 1 : 0;
    for (std::int64_t n = -before; n < item.folds; ++n) {
        const std::int64_t place = (n < 0 ? row : work.folds[item.first_fold + n]) * shape.heads + head;
        const float* stats = (n < 0 ? work.running.stats : work.partial_stats) + 2 * place;
        const float* partial = (n < 0 ? work.running.outputs : work.partial_outputs) + place * d;
        if (n == -before) {
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
    if (item.folds + before > 0) return;
    state.peak = -kInfinity;
    store(state.weights, set1(0.0f));
    for (int j = 0; j < d; j += 16) store(state.output + j, set1(0.0f));
}

// Add the compensation token of a row, if it has one, to the running results of a query head.
template <class T>
inline void compensate(const Shape& shape, const Work& work, std::int64_t row, int head, float scale, State state) {
    const Compensation& from = work.compensation;
    if (from.sums == nullptr || from.entries[row] < 0) return;
    const int d = shape.head_dim;
    const std::int64_t kv_head = head / (shape.heads / shape.kv_heads);
    const float* keys = from.sums + from.entries[row] * from.stride + 2 * kv_head * d;
    const auto* q = static_cast<const typename T::Stored*>(work.q) + (row * shape.heads + head) * d;
    V16 products = set1(0.0f);
    for (int j = 0; j < d; j += 16) products = fma(T::widen(q + j), load(keys + j), products);
    const float score = sum(products) * from.shares[row] + from.biases[row] / work.scale;
    const float new_peak = score > state.peak ? score : state.peak;
    const float weight = exp2_difference(scale * score, scale * new_peak);
    const V16 own_share = set1(exp2_difference(scale * state.peak, scale * new_peak));
    const V16 share = set1(weight * from.shares[row]);
    for (int j = 0; j < d; j += 16) {
        store(state.output + j, fma(share, load(keys + d + j), mul(own_share, load(state.output + j))));
    }
    store(state.weights, fma(own_share, load(state.weights), first_lane(weight)));
    state.peak = new_peak;
}

// Number of full chunks of an item. At most one partial chunk follows them.
inline std::int64_t full_chunks(const Shape& shape, const Work& work, const Item& item) {
    return item.chunk_count - (item.tail_row >= 0 && work.last_tokens[item.tail_row] < shape.chunk_size);
}

// Where K and V of an item lie.
template <class T>
struct Pieces {
    using Stored = typename T::Stored;
    const Shape& shape;
    const Work& work;
    const Item& item;
    std::int64_t full;  // number of full chunks

    Pieces(const Shape& shape, const Work& work, const Item& item)
        : shape(shape), work(work), item(item), full(full_chunks(shape, work, item)) {}

    // Tokens in chunk n of the item.
    int tokens(std::int64_t n) const {
        return n < full ? shape.chunk_size : static_cast<int>(work.last_tokens[item.tail_row]);
    }
    const Stored* keys(std::int64_t n, int head) const {
        const std::int64_t both = 2 * static_cast<std::int64_t>(shape.chunk_size) * shape.head_dim;
        return reinterpret_cast<const Stored*>(work.chunks[item.first_chunk + n] + work.shift) + head * both;
    }
    const Stored* values(std::int64_t n, int head) const {
        return keys(n, head) + static_cast<std::int64_t>(shape.chunk_size) * shape.head_dim;
    }
    std::int64_t bytes(std::int64_t n) const {
        return static_cast<std::int64_t>(sizeof(Stored)) * tokens(n) * shape.head_dim;
    }
    Ahead keys_ahead(std::int64_t n, int head) const {
        return {reinterpret_cast<const char*>(keys(n, head)), bytes(n)};
    }
    Ahead values_ahead(std::int64_t n, int head) const {
        return {reinterpret_cast<const char*>(values(n, head)), bytes(n)};
    }
};

// In the last chunk of an item of a prompt, each row reads the tokens up to its own: -inf for the scores of the others.
// `rows` rows of scores, `group` for each row of the item, `row` apart.
inline void hide_later_tokens(const Work& work, const Item& item, int tokens, int group, int rows, float* scores,
                              std::int64_t row) {
    for (int i = 0; i < rows; ++i) {
        const auto seen = static_cast<int>(work.last_tokens[work.rows[item.first_row + i / group]]);
        for (int t = seen; t < (tokens + 15) / 16 * 16; ++t) scores[i * row + t] = -kInfinity;
    }
}

// Fetch what is left of an item after its full chunks. The requests for such short pieces have to leave earlier than
// during the piece before them.
template <class T>
inline void fetch_tail(const Pieces<T>& pieces, int head) {
    fetch(pieces.keys_ahead(pieces.full, head));
    fetch(pieces.values_ahead(pieces.full, head));
}

// What to fetch during the last piece before the next item: its first K, or, now, all of an item that is short.
template <class T>
inline Ahead first_piece(const Shape& shape, const Work& work, Heads heads, Next next) {
    const Item* item = next.item;
    if (item == nullptr) {
        const std::int64_t unit = __atomic_load_n(next.taken, __ATOMIC_RELAXED);
        if (unit >= work.unit_count) return {nullptr, 0};
        item = work.items + work.units[unit].first_item;
        heads = work.units[unit].heads;
    }
    if (item->chunk_count == 0) return {nullptr, 0};
    const Pieces<T> pieces(shape, work, *item);
    if (pieces.full > 0) return pieces.keys_ahead(0, heads.first);
    for (int h = 0; h < heads.count; ++h) fetch_tail(pieces, heads.first + h);
    return {nullptr, 0};
}

// Adds the ticks since the last lap to a part, if the call is traced. As a parameter of the templates it would double
// the loops, and the compiler then no longer inlines what they call.
struct Laps {
    explicit Laps(std::int64_t* parts) : parts(parts), last(parts != nullptr ? ticks() : 0) {}
    void lap(Part part) {
        if (parts == nullptr) return;
        const std::int64_t now = ticks();
        parts[part] += now - last;
        last = now;
    }
    std::int64_t* const parts;
    std::int64_t last;
};

#ifdef CHUNKBENCH_TILE_PRODUCTS
// Many rows times one full chunk of a head: scores, weights, sums. `queries` and `sums` are the left side of the first
// product and the result of the second one; `scores` holds what is between them. Fetches `next` meanwhile: a quarter
// during each product and half during the softmax, as the times of these parts are. `hide` changes the scores.
template <class T, class Hide>
inline void run_chunk_by_tiles(Rows queries, Rows sums, const typename T::Stored* keys, int d, int c, float scale,
                               float* peaks, float* weights, Spread next, const Hide& hide, Laps& laps) {
    const auto lines_each = [&](std::int64_t parts, std::int64_t slots) {
        const std::int64_t lines = (next.end - next.at) / kLine;
        return static_cast<int>((lines + parts * slots - 1) / (parts * slots));
    };
    const int products = lines_each(4, static_cast<std::int64_t>(c) * d / (32 * 2 * kTileSteps));
    const int softmax = lines_each(2, queries.count);
    multiply_tiles<Side::keys>(queries, {keys, 16 * d, d / 2}, c / 16, next, products);
    laps.lap(kScores);
    hide();
    for (int i = 0; i < queries.count; ++i) {
        next.fetch(softmax);
        weigh<T>(queries.out + i * queries.out_row, c, scale, peaks[i], weights + 16 * i, sums.out + i * sums.out_row,
                 d);
    }
    laps.lap(kSoftmax);
    const auto* values = keys + static_cast<std::int64_t>(c) * d;
    for (int i = 0; i < d; i += kBand, sums.out += kBand, values += kBand * c) {
        const int band = d - i < kBand ? d - i : kBand;
        multiply_tiles<Side::values>(sums, {values, 2 * band, c / 2}, band / 16, next, products);
    }
    laps.lap(kValues);
}
#endif

// One item for the KV heads `heads`, chunk by chunk, so that it reads a chunk's heads in the order of memory. `Reads`:
// only reads the chunks, as an item of one row does, and adds what it reads. parts: see ItemLoop.
template <class T, bool Reads>
void run_item(const Shape& shape, const Work& work, const Item& item, Heads heads, Next next, float* scratch,
              std::int64_t* parts) {
    Laps laps(parts);
    using Stored = typename T::Stored;
    const int d = shape.head_dim, c = shape.chunk_size, group = shape.heads / shape.kv_heads;
    const int rows = Reads ? 1 : static_cast<int>(item.row_count) * group, all = rows * heads.count;
    float* queries = scratch;
    float* outputs = queries + static_cast<std::int64_t>(all) * d;
    float* weights = outputs + static_cast<std::int64_t>(all) * d;
    float* scores = weights + 16 * static_cast<std::int64_t>(all);
    float* peaks = scores + static_cast<std::int64_t>(rows) * c;
    const float scale = work.scale * kLog2E;
    // Row i of a KV head: query head `head` of row `row`.
    const auto for_each = [&](const auto& body) {
        if constexpr (Reads) return;
        for (int i = 0; i < all; ++i) {
            const int head = (heads.first + i / rows) * group + i % rows % group;
            body(i, work.rows[item.first_row + i % rows / group], head);
        }
    };

    for_each([&](int i, std::int64_t row, int head) {
        take_query<T>(static_cast<const Stored*>(work.q) + (row * shape.heads + head) * d, d, queries + i * d);
        const State state{outputs + i * d, weights + 16 * i, peaks[i]};
        start(shape, work, item, row, head, scale, state);
        if (item.first_partial < 0) compensate<T>(shape, work, row, head, scale, state);
    });
    laps.lap(kStart);
    const Pieces<T> pieces(shape, work, item);
#ifdef CHUNKBENCH_TILE_PRODUCTS
    constexpr bool kTiles = kInPairs<T> && !Reads;
    const bool suits_tiles = kTiles && rows > kStreamRows && d % (2 * kTileSteps) == 0 && c % (2 * kTileSteps) == 0;
    const Tiles tiles(suits_tiles ? rows : 0);
#endif
    for (std::int64_t n = 0; n < item.chunk_count; ++n) {
        const int tokens = pieces.tokens(n), blocks = tokens / 16, remainder = tokens % 16;
        for (int h = 0; h < heads.count; ++h) {
            const int head = heads.first + h, first = h * rows;
            const bool last_head = h + 1 == heads.count;
            const Ahead after = !last_head                 ? pieces.keys_ahead(n, head + 1)
                                : n + 1 < item.chunk_count ? pieces.keys_ahead(n + 1, heads.first)
                                                           : first_piece<T>(shape, work, heads, next);
            if (n + 1 == pieces.full && pieces.full < item.chunk_count) fetch_tail(pieces, head);
            const Stored* keys = pieces.keys(n, head);
            const Stored* values = pieces.values(n, head);
            Rows products{queries + static_cast<std::int64_t>(first) * d, d, scores, c, false, rows};
            Rows sums{scores, c, outputs + static_cast<std::int64_t>(first) * d, d, true, rows};
            const auto hide = [&] {
                if (Reads || item.tail_row < 0 || n + 1 < item.chunk_count) return;
                if (item.row_count == 1 && work.rows[item.first_row] == item.tail_row) return;
                hide_later_tokens(work, item, tokens, group, rows, scores, c);
            };
#ifdef CHUNKBENCH_TILE_PRODUCTS
            if constexpr (kTiles) {
                if (suits_tiles && n < pieces.full) {
                    const bool both = last_head && n + 1 < pieces.full;  // K and V of the next chunk
                    const char* end = after.from + (both ? 2 : 1) * after.bytes;
                    run_chunk_by_tiles<T>(products, sums, keys, d, c, scale, peaks + first, weights + 16 * first,
                                          {after.from, end}, hide, laps);
                    continue;
                }
            }
#endif
            multiply<T, Side::keys, Reads>(products, {keys, 16 * d, d / T::kStep}, blocks, pieces.values_ahead(n, head),
                                           work.mode);
            if (!Reads && remainder > 0) {
                products.out += blocks * 16;
                scores_of_tokens<T>(products, d, keys + static_cast<std::int64_t>(blocks) * 16 * d, remainder);
            }
            laps.lap(kScores);
            hide();
            for (int i = 0; !Reads && i < rows; ++i) {
                weigh<T>(scores + static_cast<std::int64_t>(i) * c, (tokens + 15) / 16 * 16, scale, peaks[first + i],
                         weights + 16 * (first + i), outputs + static_cast<std::int64_t>(first + i) * d, d);
            }
            laps.lap(kSoftmax);
            // Pairs: an unpaired last token has a partner with weight zero; packing sets this partner to zero.
            const int steps = (tokens + T::kStep - 1) / T::kStep;
            for (int i = 0; i < d; i += kBand, sums.out += kBand, values += kBand * c) {
                const int band = d - i < kBand ? d - i : kBand;
                multiply<T, Side::values, Reads>(sums, {values, T::kStep * band, steps}, band / 16,
                                                 after.part(i, band, d), work.mode);
            }
            laps.lap(kValues);
        }
    }
    const auto leave = [&](int i, std::int64_t place, float total, float* to, float* stats) {
        for (int j = 0; j < d; j += 16) store(to + place * d + j, load(outputs + static_cast<std::int64_t>(i) * d + j));
        stats[2 * place] = peaks[i];
        stats[2 * place + 1] = total;
    };
    for_each([&](int i, std::int64_t row, int head) {
        const float total = sum(load(weights + 16 * i));
        if (item.first_partial >= 0) {
            const std::int64_t place = (item.first_partial + i % rows / group) * shape.heads + head;
            leave(i, place, total, work.partial_outputs, work.partial_stats);
        } else if (work.running.outputs != nullptr) {
            leave(i, row * shape.heads + head, total, work.running.outputs, work.running.stats);
        } else {
            const float* output = outputs + static_cast<std::int64_t>(i) * d;
            auto* out = static_cast<Stored*>(work.out) + (row * shape.heads + head) * d;
            const V16 inverse = set1(1.0f / total);
            for (int j = 0; j < d; j += 16) T::put(out + j, mul(load(output + j), inverse));
        }
    });
    laps.lap(kLeave);
}

template <bool Reads>
void item(const Shape& shape, const Work& work, const Item& current, Heads heads, Next next, float* scratch,
          std::int64_t* parts) {
#ifdef CHUNKBENCH_PAIR_PRODUCTS
    run_item<Bfloat16, Reads>(shape, work, current, heads, next, scratch, parts);
#else
    switch (shape.dtype) {
        case Dtype::float32: return run_item<Float32, Reads>(shape, work, current, heads, next, scratch, parts);
        case Dtype::float16: return run_item<Float16, Reads>(shape, work, current, heads, next, scratch, parts);
        case Dtype::bfloat16: return run_item<Bfloat16, Reads>(shape, work, current, heads, next, scratch, parts);
    }
#endif
}

Loops loops() { return {item<false>, item<true>, linear_of, norm_of, rotate_of, sum_of, multiply_add, kFlops}; }

}  // namespace
}  // namespace CHUNKBENCH_NAMESPACE

Loops CHUNKBENCH_LOOPS() { return CHUNKBENCH_NAMESPACE::loops(); }

}  // namespace chunkbench
