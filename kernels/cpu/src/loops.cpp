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
#include "latent_values.h"
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

// Write one query of type Q as the left side of a product.
template <class Q, bool InPairs>
inline void take_query(const typename Q::Stored* q, int d, float* to) {
    if constexpr (InPairs) {
        __builtin_memcpy(to, q, d * sizeof(*q));
    } else {
        for (int j = 0; j < d; j += 16) store(to + j, Q::widen(q + j));
    }
}

// How the stored numbers n of a head's K or V become values: s * (n - z). `fixed` times `each[t]`, if there is such an
// array, is the s of token t.
struct Scaling {
    float fixed;
    const float *each, *zeros;

    V16 scales(std::int64_t t) const { return each ? load(each + t) : set1(fixed); }
    float scale(std::int64_t t) const { return each ? each[t] : fixed; }
};

// Turn products of a query with the stored numbers of `tokens` tokens into scores. `sum`: the sum of the query.
inline void scale_scores(float* scores, int tokens, const Scaling& keys, float sum) {
    int t = 0;
    for (; t + 16 <= tokens; t += 16) {
        V16 score = load(scores + t);
        if (keys.zeros) score = fma(set1(-sum), load(keys.zeros + t), score);
        store(scores + t, mul(score, keys.scales(t)));
    }
    for (; t < tokens; ++t) scores[t] = keys.scale(t) * (scores[t] - (keys.zeros ? sum * keys.zeros[t] : 0.0f));
}

// Multiply the weights of `tokens` tokens by the scales of their V. Returns what the zeros add to every number of the
// output.
inline float scale_weights(float* weights, int tokens, const Scaling& values) {
    float shift = 0.0f;
    V16 shifts = set1(0.0f);
    int t = 0;
    for (; t + 16 <= tokens; t += 16) {
        const V16 weight = mul(load(weights + t), values.scales(t));
        if (values.zeros) shifts = fma(weight, load(values.zeros + t), shifts);
        store(weights + t, weight);
    }
    for (; t < tokens; ++t) {
        weights[t] *= values.scale(t);
        if (values.zeros) shift += weights[t] * values.zeros[t];
    }
    return -(shift + sum(shifts));
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
    const int d = shape.value_dim;
    const std::int64_t before =
        item.first_partial < 0 && work.running.outputs != nullptr && !work.running.fresh ? 1 : 0;
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
template <class Q>
inline void compensate(const Shape& shape, const Work& work, std::int64_t row, int head, float scale, State state) {
    const Compensation& from = work.compensation;
    if (from.sums == nullptr || from.entries[row] < 0) return;
    const int d = shape.head_dim;
    const std::int64_t kv_head = head / (shape.heads / shape.kv_heads);
    const float* keys = from.sums + from.entries[row] * from.stride + 2 * kv_head * d;
    const auto* q = static_cast<const typename Q::Stored*>(work.q) + (row * shape.heads + head) * d;
    V16 products = set1(0.0f);
    for (int j = 0; j < d; j += 16) products = fma(Q::widen(q + j), load(keys + j), products);
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

// Add the sink of a query head, if the call has sinks, to the running results of a row.
inline void add_sink(const Work& work, int head, int d, float scale, State state) {
    if (work.changes.sinks == nullptr) return;
    const float score = work.changes.sinks[head] / work.scale;
    const float new_peak = score > state.peak ? score : state.peak;
    const V16 own_share = set1(exp2_difference(scale * state.peak, scale * new_peak));
    for (int j = 0; j < d; j += 16) store(state.output + j, mul(own_share, load(state.output + j)));
    const float weight = exp2_difference(scale * score, scale * new_peak);
    store(state.weights, fma(own_share, load(state.weights), first_lane(weight)));
    state.peak = new_peak;
}

// Number of full chunks of an item. At most one partial chunk follows them.
inline std::int64_t full_chunks(const Shape& shape, const Work& work, const Item& item) {
    return item.chunk_count - (item.tail_row >= 0 && work.last_tokens[item.tail_row] < shape.chunk_size);
}

template <class A, class B>
constexpr bool is = false;
template <class A>
constexpr bool is<A, A> = true;

// Whether K and V of T have scales.
template <class T>
constexpr bool kScaled = T::kBytes == 1;

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
        const std::int64_t chunk = work.chunks[item.first_chunk + n] + work.shift;
        return reinterpret_cast<const Stored*>(chunk + head * shape.head_bytes);
    }
    const Stored* values(std::int64_t n, int head) const {
        return keys(n, head) + static_cast<std::int64_t>(shape.chunk_size) * shape.head_dim;
    }
    bool latent() const { return shape.kv == Kv::latent; }
    // Scales of K, or of V, of 8 bits.
    Scaling scaling(std::int64_t n, int head, Side side) const {
        const bool of_values = side == Side::values;
        const std::int64_t c = shape.chunk_size;
        const auto* floats = reinterpret_cast<const float*>(values(n, head) + c * shape.head_dim);
        if constexpr (is<T, Int8>) return {1.0f, floats + of_values * c, nullptr};
        if constexpr (is<T, Uint8>) return {1.0f, floats + of_values * 2 * c, floats + (of_values * 2 + 1) * c};
        const float* given = of_values ? work.kv_scales.values : work.kv_scales.keys;
        return {256.0f * (given ? given[head] : 1.0f), nullptr, nullptr};
    }
    Ahead scales_ahead(std::int64_t n, int head) const {
        const std::int64_t numbers = 2 * static_cast<std::int64_t>(shape.chunk_size) * shape.head_dim;
        return {reinterpret_cast<const char*>(keys(n, head) + numbers), shape.head_bytes - numbers};
    }
    std::int64_t bytes(std::int64_t n, int dimensions) const {
        return static_cast<std::int64_t>(sizeof(Stored)) * tokens(n) * dimensions;
    }
    Ahead keys_ahead(std::int64_t n, int head) const {
        return {reinterpret_cast<const char*>(keys(n, head)), bytes(n, shape.head_dim)};
    }
    // Nothing, if V is a part of K.
    Ahead values_ahead(std::int64_t n, int head) const {
        if (latent()) return {nullptr, 0};
        return {reinterpret_cast<const char*>(values(n, head)), bytes(n, shape.value_dim)};
    }
};

// The product with K in parts, because `widened_tiles` has room for so many dimensions.
inline int key_part(int d) {
    const int parts = (d + kMostWidened - 1) / kMostWidened;
    return ((d + parts - 1) / parts + 15) / 16 * 16;
}

// In the last chunk of an item of a prompt, each row reads the tokens up to its own: -inf for the scores of the others.
// `rows` rows of scores, `group` for each row of the item, `row` apart.
inline void hide_later_tokens(const Work& work, const Item& item, int tokens, int group, int rows, float* scores,
                              std::int64_t row) {
    for (int i = 0; i < rows; ++i) {
        const auto seen = static_cast<int>(work.last_tokens[work.rows[item.first_row + i / group]]);
        for (int t = seen; t < (tokens + 15) / 16 * 16; ++t) scores[i * row + t] = -kInfinity;
    }
}

// The positions whose tokens some rows of an item do not read: those before `begin`, and those from `end` on.
struct Span {
    std::int64_t begin, end;
};

inline Span seen_by_all(const Work& work, const Item& item, int c) {
    Span span{0, INT64_MAX};
    for (std::int64_t i = 0; i < item.row_count; ++i) {
        const std::int64_t row = work.rows[item.first_row + i];
        const Sight& sight = work.sights[row];
        const std::int64_t end = sight.before * c + work.last_tokens[row];
        span.begin = end - sight.window > span.begin ? end - sight.window : span.begin;
        span.end = end - sight.reach < span.end ? end - sight.reach : span.end;
    }
    return span;
}

// -inf for the scores of tokens that rows do not read (Sight) in chunk `chunk` of their sequence, of c tokens. Other
// arguments: see hide_later_tokens.
inline void hide_unseen(const Work& work, const Item& item, std::int64_t chunk, int tokens, int group, int rows,
                        float* scores, int c) {
    for (int i = 0; i < rows; ++i, scores += c) {
        const std::int64_t of = work.rows[item.first_row + i / group];
        const Sight& sight = work.sights[of];
        const std::int64_t end = (sight.before - chunk) * c + work.last_tokens[of];  // of the sequence
        const std::int64_t first = end - sight.window < tokens ? end - sight.window : tokens;
        for (std::int64_t t = 0; t < first; ++t) scores[t] = -kInfinity;
        for (std::int64_t t = end > sight.reach ? end - sight.reach : 0; t < tokens && t < end; ++t) {
            const std::int64_t bit = end - 1 - t;
            if (sight.hidden[bit / 64] >> (bit % 64) & 1) scores[t] = -kInfinity;
        }
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
// during each product and half during the softmax, as the times of these parts are. `hide` changes the scores;
// `values_of` gives V.
template <class T, class Hide, class Values>
inline void run_chunk_by_tiles(Rows queries, Rows sums, const typename T::Stored* keys, int d, int d_v, int c,
                               float scale, float* peaks, float* weights, Spread next, const Hide& hide,
                               const Values& values_of, Laps& laps) {
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
                 d_v);
    }
    laps.lap(kSoftmax);
    const auto* values = values_of();
    for (int i = 0; i < d_v; i += kBand, sums.out += kBand, values += kBand * c) {
        const int band = d_v - i < kBand ? d_v - i : kBand;
        multiply_tiles<Side::values>(sums, {values, 2 * band, c / 2}, band / 16, next, products);
    }
    laps.lap(kValues);
}
#endif

// One item for the KV heads `heads`, chunk by chunk, so that it reads a chunk's heads in the order of memory. T is the
// type of K and V. `Reads`: only reads the chunks, as an item of one row does, and adds what it reads. parts: see
// ItemLoop.
template <class T, bool Reads>
void run_item(const Shape& shape, const Work& work, const Item& item, Heads heads, Next next, float* scratch,
              std::int64_t* parts) {
    Laps laps(parts);
    using Stored = typename T::Stored;
    const int d = shape.head_dim, d_v = shape.value_dim, c = shape.chunk_size, group = shape.heads / shape.kv_heads;
    const int rows = Reads ? 1 : static_cast<int>(item.row_count) * group, all = rows * heads.count;
    float* queries = scratch;
    float* outputs = queries + static_cast<std::int64_t>(all) * d;
    float* weights = outputs + static_cast<std::int64_t>(all) * d_v;
    float* scores = weights + 16 * static_cast<std::int64_t>(all);
    float* peaks = scores + static_cast<std::int64_t>(rows) * c;
    float* query_sums = peaks + all;                                     // with scales only
    auto* const latent_values = reinterpret_cast<Stored*>(peaks + all);  // if V is a part of K
    const float scale = work.scale * kLog2E;
    // Row i of a KV head: query head `head` of row `row`.
    const auto for_each = [&](const auto& body) {
        if constexpr (Reads) return;
        for (int i = 0; i < all; ++i) {
            const int head = (heads.first + i / rows) * group + i % rows % group;
            body(i, work.rows[item.first_row + i % rows / group], head);
        }
    };

    // Calls body with the type of queries and outputs. With 8 bits, T does not say it, and loops for each would be
    // many.
    const auto with_query = [&](const auto& body) {
        if constexpr (kScaled<T>) {
            as_dtype(shape.dtype, body);
        } else {
            body(T());
        }
    };

    for_each([&](int i, std::int64_t row, int head) {
        const State state{outputs + static_cast<std::int64_t>(i) * d_v, weights + 16 * i, peaks[i]};
        start(shape, work, item, row, head, scale, state);
        with_query([&](auto type) {
            using Q = decltype(type);
            const auto* query = static_cast<const typename Q::Stored*>(work.q) + (row * shape.heads + head) * d;
            take_query<Q, kInPairs<T>>(query, d, queries + i * d);
            if (item.first_partial < 0) compensate<Q>(shape, work, row, head, scale, state);
        });
        if (item.first_partial < 0) add_sink(work, head, d_v, scale, state);
        if constexpr (kScaled<T>) {
            V16 total = set1(0.0f);
            for (int j = 0; j < d; j += 16) total = add(total, load(queries + i * d + j));
            query_sums[i] = sum(total);
        }
    });
    laps.lap(kStart);
    const Pieces<T> pieces(shape, work, item);
    const Span span = work.sights != nullptr && !Reads ? seen_by_all(work, item, c) : Span{0, INT64_MAX};
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
            if constexpr (kScaled<T>) {
                if (!last_head) fetch(pieces.scales_ahead(n, head + 1));
                if (last_head && n + 1 < item.chunk_count) fetch(pieces.scales_ahead(n + 1, heads.first));
            }
            const Stored* keys = pieces.keys(n, head);
            const auto values_of = [&]() -> const Stored* {
                if (!pieces.latent()) return pieces.values(n, head);
                if constexpr (kInPairs<T>) pair_latent_values<T>(keys, tokens, d, d_v, c, latent_values);
                return latent_values;
            };
            Rows products{queries + static_cast<std::int64_t>(first) * d, d, scores, c, false, rows};
            Rows sums{scores, c, outputs + static_cast<std::int64_t>(first) * d_v, d_v, true, rows};
            const auto hide = [&] {
                if (Reads) return;
                for (int i = 0; work.changes.cap > 0 && i < rows; ++i) {
                    cap_scores(scores + static_cast<std::int64_t>(i) * c, tokens, work.scale, work.changes.cap);
                }
                const std::int64_t chunk = item.before + n, position = chunk * c;
                if (position < span.begin || position + tokens > span.end) {
                    hide_unseen(work, item, chunk, tokens, group, rows, scores, c);
                }
                if (item.tail_row < 0 || n + 1 < item.chunk_count) return;
                if (item.row_count == 1 && work.rows[item.first_row] == item.tail_row) return;
                hide_later_tokens(work, item, tokens, group, rows, scores, c);
            };
#ifdef CHUNKBENCH_TILE_PRODUCTS
            if constexpr (kTiles) {
                if (suits_tiles && n < pieces.full) {
                    const bool both = last_head && n + 1 < pieces.full;  // K and V of the next chunk
                    const char* end = after.from + after.bytes + (both ? pieces.values_ahead(n + 1, head).bytes : 0);
                    run_chunk_by_tiles<T>(products, sums, keys, d, d_v, c, scale, peaks + first, weights + 16 * first,
                                          {after.from, end}, hide, values_of, laps);
                    continue;
                }
            }
#endif
            // What is fetched during the products with K and with V. A product fetches as many bytes as it reads, so if
            // V has another dimension than K: the next K, then the next V.
            const bool even = d == d_v;
            const Ahead second = even ? pieces.values_ahead(n, head) : after;
            const Ahead third = even                       ? after
                                : !last_head               ? pieces.values_ahead(n, head + 1)
                                : n + 1 < item.chunk_count ? pieces.values_ahead(n + 1, heads.first)
                                                           : Ahead{nullptr, 0};
            for (int j = 0, part = key_part(d); j < d; j += part) {
                const int some = d - j < part ? d - j : part;
                Rows rows_of_part = products;
                rows_of_part.left += kInPairs<T> ? j / 2 : j;
                rows_of_part.add = j > 0;
                multiply<T, Side::keys, Reads>(rows_of_part, {keys + 16 * j, 16 * d, some / T::kStep}, blocks,
                                               second.part(j, some, d), work.mode, !pieces.latent());
            }
            if (!Reads && remainder > 0) {
                products.out += blocks * 16;
                scores_of_tokens<T>(products, d, keys + static_cast<std::int64_t>(blocks) * 16 * d, remainder);
            }
            if constexpr (kScaled<T> && !Reads) {
                const Scaling scaling = pieces.scaling(n, head, Side::keys);
                for (int i = 0; i < rows; ++i) {
                    float* const row = scores + static_cast<std::int64_t>(i) * c;
                    scale_scores(row, tokens, scaling, query_sums[first + i]);
                }
            }
            laps.lap(kScores);
            hide();
            for (int i = 0; !Reads && i < rows; ++i) {
                float* const row = scores + static_cast<std::int64_t>(i) * c;
                float* const output = outputs + static_cast<std::int64_t>(first + i) * d_v;
                weigh<T>(row, (tokens + 15) / 16 * 16, scale, peaks[first + i], weights + 16 * (first + i), output,
                         d_v);
                if constexpr (kScaled<T>) {
                    const Scaling scaling = pieces.scaling(n, head, Side::values);
                    const V16 shift = set1(scale_weights(row, tokens, scaling));
                    for (int j = 0; scaling.zeros && j < d_v; j += 16) store(output + j, add(load(output + j), shift));
                }
            }
            laps.lap(kSoftmax);
            // Pairs: an unpaired last token has a partner with weight zero; packing sets this partner to zero.
            const int steps = (tokens + T::kStep - 1) / T::kStep;
            if (pieces.latent() && (Reads || !kInPairs<T>)) {
                if constexpr (!Reads && !kInPairs<T> && !kScaled<T>) add_latent_values<T>(sums, keys, tokens, d, d_v);
                laps.lap(kValues);
                continue;
            }
            const Stored* values = values_of();
            for (int i = 0; i < d_v; i += kBand, sums.out += kBand, values += kBand * c) {
                const int band = d_v - i < kBand ? d_v - i : kBand;
                multiply<T, Side::values, Reads>(sums, {values, T::kStep * band, steps}, band / 16,
                                                 third.part(i, band, d_v), work.mode);
            }
            laps.lap(kValues);
        }
    }
    const auto leave = [&](int i, std::int64_t place, float total, float* to, float* stats) {
        const float* const output = outputs + static_cast<std::int64_t>(i) * d_v;
        for (int j = 0; j < d_v; j += 16) store(to + place * d_v + j, load(output + j));
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
            const float* output = outputs + static_cast<std::int64_t>(i) * d_v;
            const V16 inverse = set1(1.0f / total);
            with_query([&](auto type) {
                using Q = decltype(type);
                auto* out = static_cast<typename Q::Stored*>(work.out) + (row * shape.heads + head) * d_v;
                for (int j = 0; j < d_v; j += 16) Q::put(out + j, mul(load(output + j), inverse));
            });
        }
    });
    laps.lap(kLeave);
}

template <bool Reads>
void item(const Shape& shape, const Work& work, const Item& current, Heads heads, Next next, float* scratch,
          std::int64_t* parts) {
    const auto run = [&](auto type) {
        run_item<decltype(type), Reads>(shape, work, current, heads, next, scratch, parts);
    };
#ifdef CHUNKBENCH_PAIR_PRODUCTS
    run(Bfloat16());
#else
    switch (shape.kv) {
        case Kv::same:
        case Kv::latent: return as_dtype(shape.dtype, run);
        case Kv::int8: return run(Int8());
        case Kv::uint8: return run(Uint8());
        case Kv::fp8: return run(Fp8());
    }
#endif
}

void scale_row(Dtype dtype, const float* from, std::int64_t count, float factor, void* to) {
    as_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        auto* const out = static_cast<typename T::Stored*>(to);
        for (std::int64_t i = 0; i < count; i += 16) T::put(out + i, mul(load(from + i), set1(factor)));
    });
}

Loops loops() {
    return {item<false>, item<true>, linear_of, norm_of, rotate_of, scale_row, sum_of, multiply_add, kFlops};
}

}  // namespace
}  // namespace CHUNKBENCH_NAMESPACE

Loops CHUNKBENCH_LOOPS() { return CHUNKBENCH_NAMESPACE::loops(); }

}  // namespace chunkbench
