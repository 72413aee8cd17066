// The portable loops against sums in double precision, without Python, so that any CPU that a compiler and an emulator
// know can run them.
//
// processors FIRST COUNT: makes forests FIRST .. FIRST + COUNT - 1. Prints the loops' name and how many results were
// compared. Ends with 1 and a message at the first wrong one.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "../../kernels/cpu/src/attention.h"
#include "../../kernels/cpu/src/decode_plan.h"
#include "../../kernels/cpu/src/linear.h"
#include "../../kernels/cpu/src/packing.h"
#include "../../kernels/cpu/src/probes.h"

using namespace chunkbench;
using Doubles = std::vector<double>;

namespace {

constexpr Isa kIsa = Isa::portable;
constexpr double kRounding[] = {0, 0x1p-11, 0x1p-8};  // of an output: half a unit in the last place
constexpr double kSums = 1e-5;                        // of sums in single precision
constexpr double kScores = 5e-7;                      // what a score of 1 may be wrong by
std::mt19937_64 chance;
long long compared = 0;

int draw(int least, int most) { return least + static_cast<int>(chance() % (most - least + 1)); }
bool happens(int percent) { return draw(1, 100) <= percent; }
double uniform(double size) { return size * (2.0 * static_cast<double>(chance() >> 11) * 0x1p-53 - 1.0); }

// A tensor of a dtype, in bytes and as the doubles that these stand for. Conversions are exact and use no code of the
// loops.
struct Tensor {
    Dtype dtype;
    std::vector<unsigned char> bytes;
    std::size_t width() const { return dtype == Dtype::float32 ? 4 : 2; }

    // All bits set: a NaN in every dtype.
    Tensor(Dtype dtype, std::size_t count) : dtype(dtype), bytes(count * (dtype == Dtype::float32 ? 4 : 2), 0xff) {}
    const unsigned char* at(std::size_t i) const { return bytes.data() + i * width(); }

    double operator[](std::size_t i) const {
        if (dtype == Dtype::float32) {
            float value;
            std::memcpy(&value, at(i), 4);
            return value;
        }
        std::uint16_t bits;
        std::memcpy(&bits, at(i), 2);
        const double sign = bits >> 15 ? -1.0 : 1.0;
        const bool half = dtype == Dtype::float16;
        const int width = half ? 10 : 7, bias = half ? 15 : 127;
        const int exponent = (bits & 0x7fff) >> width, fraction = bits & ((1 << width) - 1);
        if (exponent == 2 * bias + 1) return fraction ? std::nan("") : sign * HUGE_VAL;
        if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - width);
        return sign * std::ldexp((1 << width) + fraction, exponent - bias - width);
    }

    // Writes a number without its last digits, if it has too many.
    void set(std::size_t i, double value) {
        if (dtype == Dtype::float32) {
            const auto single = static_cast<float>(value);
            std::memcpy(bytes.data() + 4 * i, &single, 4);
            return;
        }
        const bool half = dtype == Dtype::float16;
        const int width = half ? 10 : 7, bias = half ? 15 : 127;
        int exponent = 0;
        const double fraction = std::frexp(std::fabs(value), &exponent);  // 1/2 <= fraction < 1, or 0
        unsigned bits = 0;
        if (exponent - 1 >= 1 - bias && fraction != 0) {
            bits = static_cast<unsigned>(exponent - 1 + bias) << width;
            bits += static_cast<unsigned>(std::ldexp(fraction, width + 1)) - (1u << width);
        } else {
            bits = static_cast<unsigned>(std::ldexp(std::fabs(value), width - 1 + bias));
        }
        const auto stored = static_cast<std::uint16_t>(bits | (value < 0 ? 0x8000u : 0u));
        std::memcpy(bytes.data() + 2 * i, &stored, 2);
    }
    void fill(double size) {
        for (std::size_t i = 0; i < bytes.size() / width(); ++i) {
            set(i, happens(2) ? 0.0 : happens(2) ? uniform(1e-6) : uniform(size));
        }
    }
};

void compare(const char* what, double got, double wanted, double allowed) {
    ++compared;
    if (std::fabs(got - wanted) <= allowed) return;
    std::printf("%s: %.9g, not %.9g within %.3g\n", what, got, wanted, allowed);
    std::exit(1);
}

// Scales of fp8: powers of two.
struct Fp8Scales {
    std::vector<float> of;  // [2][kv_heads]
    explicit Fp8Scales(const Shape& shape) : of(2 * shape.kv_heads) {
        for (float& scale : of) scale = std::ldexp(1.0f, draw(-3, 3));
    }
    KvScales given() const { return {of.data(), of.data() + of.size() / 2}; }
};

// Fills K or V with numbers that the stored form holds exactly, so that what was given is what must be computed with.
// `scales`: those of fp8 of this side.
void fill_exactly(const Shape& shape, double size, const float* scales, Tensor& to) {
    if (!shape.in_8_bits()) return to.fill(size);
    const int d = shape.head_dim, power = static_cast<int>(std::floor(std::log2(size))) - 7;
    const std::size_t vectors = to.bytes.size() / to.width() / d;
    for (std::size_t vector = 0; vector < vectors; ++vector) {
        const double step = std::ldexp(1.0, power - draw(0, 2));
        const bool zeros = happens(5), same = happens(5);
        const int zero = draw(0, 255), lowest = draw(0, d - 1), highest = (lowest + draw(1, d - 1)) % d;
        for (int j = 0; j < d; ++j) {
            double number = 0;
            if (shape.kv == Kv::int8) {
                number = step * (j == highest ? 127 : draw(-127, 127));
            } else if (shape.kv == Kv::uint8) {
                number = step * (same ? zero : (j == highest ? 255 : j == lowest ? 0 : draw(0, 255)) - zero);
            } else {  // four digits, and the exponents of E4M3, of which bigger ones would be larger than `size`
                number = std::ldexp(draw(-15, 15), draw(-9, power)) * scales[vector % shape.kv_heads];
            }
            to.set(vector * d + j, zeros ? 0 : number);
        }
    }
}

struct Chunk {
    Tensor packed;
    Tensor k, v;  // [tokens][kv_heads][d], as given
    int tokens;
};

// A chunk whose tokens came in several calls; some were taken away again and replaced.
Chunk made_chunk(const Shape& shape, int tokens, double size, KvScales scales) {
    const std::size_t row = static_cast<std::size_t>(shape.kv_heads) * shape.head_dim;
    const std::size_t value_row = static_cast<std::size_t>(shape.kv_heads) * shape.value_dim;
    Chunk chunk{{Dtype::float32, static_cast<std::size_t>(shape.kv_heads * shape.head_bytes) / 4},
                {shape.dtype, row * shape.chunk_size},
                {shape.dtype, value_row * shape.chunk_size},
                tokens};
    fill_exactly(shape, size, scales.keys, chunk.k);
    fill_exactly(shape, size, scales.values, chunk.v);
    if (shape.kv == Kv::latent) {
        const std::size_t vectors = static_cast<std::size_t>(shape.kv_heads) * shape.chunk_size;
        for (std::size_t i = 0; i < vectors; ++i)
            for (int j = 0; j < shape.value_dim; ++j)
                chunk.v.set(i * shape.value_dim + j, chunk.k[i * shape.head_dim + j]);
    }
    const auto address = reinterpret_cast<std::int64_t>(chunk.packed.bytes.data());
    const auto add = [&](const Tensor& k, const Tensor& v, int first, int end) {
        while (first < end) {
            const int count = happens(30) ? 1 : draw(1, end - first);
            std::vector<std::int64_t> chunks(count, address), slots;
            for (int t = 0; t < count; ++t) slots.push_back(first + t);
            pack(shape, k.at(first * row), v.at(first * value_row), chunks.data(), slots.data(), count, draw(1, 3),
                 scales);
            first += count;
        }
    };
    int first = 0;
    if (happens(30)) {
        const int held = draw(1, shape.chunk_size), kept = draw(0, std::min(held, tokens));
        Tensor other_k = chunk.k, other_v = chunk.v;  // the same tokens up to `kept`
        for (std::size_t i = kept * row; i < held * row; ++i) other_k.set(i, uniform(size));
        for (std::size_t i = kept * value_row; i < held * value_row; ++i) other_v.set(i, uniform(size));
        add(other_k, other_v, 0, held);
        cut(shape, chunk.packed.bytes.data(), kept, held);
        first = kept;
    }
    add(chunk.k, chunk.v, first, tokens);
    return chunk;
}

// Rows over chunks of trees, and the items that compute them.
struct Forest {
    Shape shape;
    double size;  // of the numbers in K and V
    Fp8Scales scales;
    std::vector<std::unique_ptr<Chunk>> chunks;
    struct Row {
        std::vector<int> path;  // its full chunks
        int last;               // its last chunk
        std::vector<int> own;   // chunks of its last item
        std::vector<int> folds;
    };
    std::vector<Row> rows;
    std::vector<std::int64_t> last_tokens;  // of each row
    PlanArrays arrays{};
    std::vector<Sight> sights;  // of each row; empty: all rows read all tokens
    ScoreChanges changes{0.0f, nullptr};
    std::vector<float> sinks;
    bool sighted;  // chunks of an item follow each other then

    Forest(const Shape& shape, double size, bool sighted) : shape(shape), size(size), scales(shape), sighted(sighted) {
        for (int trees = draw(1, 2); trees > 0; --trees) grow(draw(0, 3));
        arrays.partial_items = static_cast<std::int64_t>(arrays.items.size());
        arrays.batch = static_cast<std::int64_t>(rows.size());
        for (int row = 0; row < arrays.batch; ++row) {
            const bool ends = !rows[row].own.empty() && rows[row].own.back() == rows[row].last;
            const std::size_t before = rows[row].path.size() + 1 - rows[row].own.size();
            add_item(rows[row].own, {row}, ends ? row : -1, false, before);
        }
        if (sighted) change_what_rows_read();
    }

    // Windows, hidden tokens of drafts, soft-capping and sinks. Every row reads its own token.
    void change_what_rows_read() {
        for (const Row& row : rows) {
            Sight sight{static_cast<std::int64_t>(row.path.size()),
                        happens(50) ? 1LL << 60 : draw(1, 300),
                        happens(40) ? 0 : draw(1, kMostHidden),
                        {}};
            for (std::uint64_t& bits : sight.hidden) bits = chance() & (happens(50) ? chance() : ~0ULL);
            sight.hidden[0] &= ~1ULL;
            sights.push_back(sight);
        }
        if (happens(50)) changes.cap = static_cast<float>(draw(1, 50));
        if (happens(50)) {
            for (int head = 0; head < shape.heads; ++head) sinks.push_back(static_cast<float>(uniform(3)));
            changes.sinks = sinks.data();
        }
    }

    bool reads(int row, std::int64_t position) const {
        if (sights.empty()) return true;
        const Sight& sight = sights[row];
        const std::int64_t behind = sight.before * shape.chunk_size + last_tokens[row] - 1 - position;
        if (behind >= sight.window) return false;
        return behind >= sight.reach || !(sight.hidden[behind / 64] >> (behind % 64) & 1);
    }

    int new_chunk(int tokens) {
        chunks.push_back(std::make_unique<Chunk>(made_chunk(shape, tokens, size, scales.given())));
        return static_cast<int>(chunks.size()) - 1;
    }

    void add_item(const std::vector<int>& of, const std::vector<int>& some, std::int64_t tail_row, bool partial,
                  std::size_t before) {
        Item item{};
        item.before = static_cast<std::int64_t>(before);
        item.first_chunk = static_cast<std::int64_t>(arrays.chunks.size());
        item.chunk_count = static_cast<std::int64_t>(of.size());
        item.tail_row = tail_row;
        item.first_row = static_cast<std::int64_t>(arrays.rows.size());
        item.row_count = static_cast<std::int64_t>(some.size());
        item.first_partial = partial ? arrays.partials : -1;
        item.first_fold = static_cast<std::int64_t>(arrays.folds.size());
        item.heads = draw(1, shape.kv_heads);
        for (int chunk : of) {
            arrays.chunks.push_back(reinterpret_cast<std::int64_t>(chunks[chunk]->packed.bytes.data()));
        }
        for (int row : some) {
            arrays.rows.push_back(row);
            if (partial) rows[row].folds.push_back(static_cast<int>(arrays.partials++));
        }
        if (!partial) {
            const std::vector<int>& folds = rows[some[0]].folds;
            item.folds = static_cast<std::int64_t>(folds.size());
            arrays.folds.insert(arrays.folds.end(), folds.begin(), folds.end());
        }
        arrays.items.push_back(item);
    }

    // Whether a row reads its last chunk without the rows that know more of it. A block of sixteen keys has another
    // layout when it is full.
    bool reads_alone(int row) const {
        const std::int64_t tokens = last_tokens[row], all = chunks[rows[row].last]->tokens;
        return tokens == all || tokens % 16 == 0 || tokens / 16 == all / 16;
    }

    // Chunks that some rows read: items of several of these rows, or the last item of each of them. `last`: the rows
    // end in the last of these chunks. `before`: chunks of the rows before them.
    void share(const std::vector<int>& of, const std::vector<int>& some, bool last, std::size_t before) {
        if (of.empty()) return;
        const bool gap =
            sighted && std::any_of(some.begin(), some.end(), [&](int r) { return !rows[r].folds.empty(); });
        const bool whole = last && !std::all_of(some.begin(), some.end(), [&](int row) { return reads_alone(row); });
        if (some.size() == 1 || (!whole && !gap && happens(40))) {
            for (int row : some) rows[row].own.insert(rows[row].own.end(), of.begin(), of.end());
            return;
        }
        const int count = static_cast<int>(some.size()),
                  middle = count > 2 && !whole && happens(30) ? draw(1, count - 1) : count;
        for (int first = 0, end = middle; first < count; first = end, end = count) {
            const std::vector<int> part(some.begin() + first, some.begin() + end);
            const auto shorter = [&](int a, int b) { return last_tokens[a] < last_tokens[b]; };
            add_item(of, part, last ? *std::max_element(part.begin(), part.end(), shorter) : -1, true, before);
        }
    }

    // A node and what is below it. Returns its rows. What is above comes before what is below, so that the last chunk
    // of a row's own ones is its last chunk.
    std::vector<int> grow(int depth, const std::vector<int>& above = {}) {
        std::vector<int> path = above, of, below;
        for (int n = draw(0, 2); n > 0; --n) of.push_back(new_chunk(shape.chunk_size));
        path.insert(path.end(), of.begin(), of.end());
        if (depth > 0 && happens(70)) {
            for (int n = draw(1, 3); n > 0; --n) {
                const std::vector<int> more = grow(depth - 1, path);
                below.insert(below.end(), more.begin(), more.end());
            }
            share_above(of, below, above.size());
            return below;
        }
        std::int64_t longest = 0;
        for (int n = happens(25) ? draw(2, 9) : 1; n > 0; --n) {  // rows that end in one chunk, like those of a prompt
            below.push_back(static_cast<int>(rows.size()));
            rows.push_back({path, -1, {}, {}});
            last_tokens.push_back(happens(15) ? shape.chunk_size : draw(1, shape.chunk_size));
            longest = std::max(longest, last_tokens.back());
        }
        const int tail = new_chunk(static_cast<int>(longest));
        for (int row : below) rows[row].last = tail;
        of.push_back(tail);
        share(of, below, true, above.size());
        return below;
    }
    void share_above(const std::vector<int>& of, const std::vector<int>& below, std::size_t before) {
        std::vector<std::vector<int>> kept;
        for (int row : below) kept.push_back(std::move(rows[row].own)), rows[row].own.clear();
        share(of, below, false, before);
        for (std::size_t i = 0; i < below.size(); ++i) {
            std::vector<int>& own = rows[below[i]].own;
            own.insert(own.end(), kept[i].begin(), kept[i].end());
        }
    }

    // Attention of a query head of a row, with a further key and value if `extra`. Returns the largest |score| sum.
    double attend(int row, int head, const Tensor& q, double scale, const Doubles* extra, double bias,
                  Doubles& out) const {
        const int d = shape.head_dim, d_v = shape.value_dim, kv_head = head / (shape.heads / shape.kv_heads);
        const std::size_t place = (static_cast<std::size_t>(row) * shape.heads + head) * d;
        Doubles query(d), scores;
        for (int j = 0; j < d; ++j) query[j] = q[place + j];
        std::vector<Doubles> values;
        double largest = 0;
        const auto add = [&](const auto& key, const auto& value, double bias) {
            double score = 0, size = 0;
            Doubles v(d_v);
            for (int j = 0; j < d; ++j) {
                score += query[j] * key(j);
                size += std::fabs(query[j] * key(j));
            }
            for (int j = 0; j < d_v; ++j) v[j] = value(j);
            const double cap = changes.cap, scaled = scale * score + bias;
            scores.push_back(cap > 0 ? cap * std::tanh(scaled / cap) : scaled);
            largest = std::max({largest, scale * size + std::fabs(bias), cap});
            values.push_back(v);
        };
        std::int64_t position = 0;
        const auto read = [&](const Chunk& chunk, std::int64_t tokens) {
            for (std::int64_t t = 0; t < tokens; ++t) {
                if (!reads(row, position++)) continue;
                const std::size_t vector = static_cast<std::size_t>(t) * shape.kv_heads + kv_head;
                add([&](int j) { return chunk.k[vector * d + j]; }, [&](int j) { return chunk.v[vector * d_v + j]; },
                    0);
            }
        };
        for (int chunk : rows[row].path) read(*chunks[chunk], shape.chunk_size);
        read(*chunks[rows[row].last], last_tokens[row]);
        if (extra) {
            const double* from = extra->data() + 2 * kv_head * d;
            add([&](int j) { return from[j]; }, [&](int j) { return from[d + j]; }, bias);
        }
        if (changes.sinks != nullptr) scores.push_back(changes.sinks[head]), values.emplace_back(d_v);
        const double top = *std::max_element(scores.begin(), scores.end());
        double total = 0;
        out.assign(d_v, 0);
        for (std::size_t t = 0; t < scores.size(); ++t) {
            const double weight = std::exp(scores[t] - top);
            total += weight;
            for (int j = 0; j < d_v; ++j) out[j] += weight * values[t][j];
        }
        for (double& x : out) x /= total;
        return largest;
    }
};

Shape drawn_shape() {
    const int kv_heads = draw(1, 3), group = happens(50) ? 1 : draw(2, 5);
    const char* const dtypes[] = {"float32", "float16", "bfloat16"};
    const char* const forms[] = {"same", "int8", "uint8", "fp8"};
    const char* const dtype = dtypes[draw(0, 2)];
    const int dim = 16 * draw(1, happens(20) ? 16 : 6), chunk = 16 * draw(1, 5);
    if (happens(30)) {  // K of many dimensions, and V of others: a part of K, or apart
        const int wide = 16 * draw(1, 38);
        const bool latent = happens(60);
        return make_shape(dtype, kv_heads * group, kv_heads, wide, chunk, latent ? "latent" : "same",
                          16 * draw(1, latent ? wide / 16 : 12));
    }
    return make_shape(dtype, kv_heads * group, kv_heads, dim, chunk, forms[draw(0, 3)]);
}

void attention() {
    const Shape shape = drawn_shape();
    const double size = happens(10) ? 30 : 2;
    const bool sighted = happens(40);
    Forest forest(shape, size, sighted);
    const int batch = static_cast<int>(forest.arrays.batch), d = shape.head_dim, d_v = shape.value_dim;
    const std::size_t row = static_cast<std::size_t>(shape.heads) * d, out_row = row / d * d_v;
    DecodePlan plan(shape, forest.arrays, draw(1, 4), {happens(50), happens(50)}, kIsa);
    plan.set_last_tokens(forest.last_tokens.data(), forest.last_tokens.size());
    Tensor q(shape.dtype, batch * row), out(shape.dtype, batch * out_row);
    q.fill(2);
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(d)));

    // Some rows have a compensation token, one of two entries.
    const std::int64_t stride = 2LL * shape.kv_heads * d;
    const bool compensated = d == d_v && !sighted && happens(25);
    std::vector<float> sums(2 * stride), shares(batch), biases(batch);
    Numbers entries(batch);
    for (float& x : sums) x = static_cast<float>(uniform(2 * size));
    for (int i = 0; i < batch; ++i) {
        entries[i] = draw(-1, 1);
        shares[i] = static_cast<float>(1.0 / draw(1, 9));
        biases[i] = static_cast<float>(uniform(3));
    }
    // The first two take no scales and no changes of scores.
    const int way = compensated ? 0 : draw(sighted || shape.kv == Kv::fp8 ? 2 : 0, 3);
    std::vector<float> running(batch * out_row, 0), stats(2 * static_cast<std::size_t>(batch) * shape.heads, 0);
    if (compensated) {
        plan.set_compensation(entries, shares, biases, 2, stride);
        plan.decode(q.at(0), out.bytes.data(), scale, draw(1, 4), 0, sums.data(), forest.scales.given());
    } else if (way == 0) {  // the contexts once, or twice: the same weights
        for (std::size_t i = 0; i < stats.size(); i += 2) stats[i] = -HUGE_VALF;
        for (int n = draw(1, 2); n > 0; --n)
            plan.accumulate(q.at(0), {running.data(), stats.data()}, scale, draw(1, 4));
    } else if (way == 1) {
        plan.read(draw(1, 3));
        plan.trace(Call::decode, q.at(0), out.bytes.data(), scale, draw(1, 4));
    } else {  // the chunks of another layer
        const std::int64_t shift = 64 * draw(-9, 9);
        PlanArrays moved = forest.arrays;
        for (std::int64_t& chunk : moved.chunks) chunk -= shift;
        DecodePlan other(shape, moved, 2, {happens(50), happens(50)}, kIsa);
        other.set_last_tokens(forest.last_tokens.data(), forest.last_tokens.size());
        if (sighted) other.set_sights(forest.sights);
        other.decode(q.at(0), out.bytes.data(), scale, draw(1, 4), shift, nullptr, forest.scales.given(),
                     forest.changes);
    }
    const double rounding = !compensated && way == 0 ? 0 : kRounding[static_cast<int>(shape.dtype)];
    for (int i = 0; i < batch; ++i) {
        for (int head = 0; head < shape.heads; ++head) {
            Doubles extra(sums.begin() + std::max<std::int64_t>(0, entries[i]) * stride, sums.end()), wanted;
            for (double& x : extra) x *= shares[i];
            const bool has = compensated && entries[i] >= 0;
            const double score = forest.attend(i, head, q, scale, has ? &extra : nullptr, biases[i], wanted);
            double largest = 0;
            for (double x : wanted) largest = std::max(largest, std::fabs(x));
            const std::size_t at = static_cast<std::size_t>(i) * shape.heads + head;
            for (int j = 0; j < d_v; ++j) {
                const std::size_t place = at * d_v + j;
                const double got = !compensated && way == 0 ? running[place] / double{stats[2 * at + 1]} : out[place];
                const double allowed = rounding * std::fabs(wanted[j]) + kSums * largest + 2 * size * kScores * score;
                compare("attention", got, wanted[j], allowed + 0x1p-24);
            }
        }
    }
}

void linear_layer() {
    const auto dtype = static_cast<Dtype>(draw(0, 2));
    const auto finish = static_cast<Finish>(draw(0, 3));
    const int in = 16 * draw(1, 12), rows = draw(1, happens(20) ? 60 : 6), step = dtype == Dtype::bfloat16 ? 2 : 1;
    const int blocks = finish == Finish::gate ? 2 * draw(1, 4) : draw(1, 7), outs = 16 * blocks;
    Tensor weights(dtype, static_cast<std::size_t>(outs) * in), packed = weights, x(dtype, rows * in);
    weights.fill(0.5);
    x.fill(2);
    for (int o = 0; o < outs; ++o) {
        for (int i = 0; i < in; ++i) {
            const int place = o / 16 * 16 * in + i / step * 16 * step + o % 16 * step + i % step;
            std::memcpy(packed.bytes.data() + place * packed.width(), weights.at(o * in + i), packed.width());
        }
    }
    std::vector<float> bias(outs), before(rows * outs);
    for (float& b : bias) b = static_cast<float>(uniform(1));
    for (float& b : before) b = static_cast<float>(uniform(1));
    const bool wide = finish == Finish::store32 || finish == Finish::add32, gates = finish == Finish::gate;
    Tensor y(wide ? Dtype::float32 : dtype, static_cast<std::size_t>(rows) * outs / (gates ? 2 : 1));
    if (wide) std::memcpy(y.bytes.data(), before.data(), y.bytes.size());
    const bool biased = happens(50);
    const Linear layer{dtype, in, blocks, packed.at(0), biased ? bias.data() : nullptr, finish};
    linear({layer, x.at(0), rows, y.bytes.data()}, draw(1, 3), kIsa);
    for (int r = 0; r < rows; ++r) {
        Doubles sums(outs), sizes(outs);
        for (int o = 0; o < outs; ++o) {
            sums[o] = (biased ? bias[o] : 0.0) + (finish == Finish::add32 ? before[r * outs + o] : 0.0);
            sizes[o] = 2;
            for (int i = 0; i < in; ++i) {
                sums[o] += x[r * in + i] * weights[o * in + i];
                sizes[o] += std::fabs(x[r * in + i] * weights[o * in + i]);
            }
        }
        const double rounding = wide ? 0 : kRounding[static_cast<int>(dtype)];
        for (int o = 0; o < outs / (gates ? 2 : 1); ++o) {
            if (!gates) {
                compare("linear", y[r * outs + o], sums[o], rounding * std::fabs(sums[o]) + 1e-6 * sizes[o]);
                continue;
            }
            const int gate = o / 16 * 32 + o % 16, up = gate + 16;
            const double wanted = sums[gate] / (1 + std::exp(-sums[gate])) * sums[up];
            const double error = 2e-6 * sizes[gate] * sizes[up];
            compare("gate", y[r * outs / 2 + o], wanted, rounding * std::fabs(wanted) + error);
        }
    }
}

void norm_and_rotation() {
    const auto dtype = static_cast<Dtype>(draw(0, 2));
    const Loops loops = loops_of(kIsa, dtype);
    const double rounding = kRounding[static_cast<int>(dtype)];
    const int size = 16 * draw(1, 20), heads = draw(1, 4), d = 32 * draw(1, 4);
    std::vector<float> from(size), weight(size);
    for (float& x : from) x = static_cast<float>(uniform(3));
    for (float& x : weight) x = static_cast<float>(uniform(2));
    Tensor to(dtype, size);
    rms_norm(dtype, from.data(), 1, size, weight.data(), 1e-5f, to.bytes.data(), 1, kIsa);
    double squares = 0;
    for (float x : from) squares += double{x} * x;
    for (int i = 0; i < size; ++i) {
        const double wanted = from[i] / std::sqrt(squares / size + 1e-5) * weight[i];
        compare("norm", to[i], wanted, rounding * std::fabs(wanted) + 1e-5);
    }
    Tensor x(dtype, heads * d), turned(dtype, heads * d);
    x.fill(2);
    std::vector<float> cosines(d / 2), sines(d / 2);
    for (int i = 0; i < d / 2; ++i) {
        const double angle = uniform(3);
        cosines[i] = static_cast<float>(std::cos(angle));
        sines[i] = static_cast<float>(std::sin(angle));
    }
    loops.rotate(dtype, x.at(0), heads, d, cosines.data(), sines.data(), turned.bytes.data());
    for (int place = 0; place < heads * d; ++place) {
        const int i = place % d % (d / 2), first = place - place % d + i;
        const double a = x[first], b = x[first + d / 2], c = cosines[i], s = sines[i];
        const double wanted = place % d < d / 2 ? a * c - b * s : b * c + a * s;
        compare("rotation", turned[place], wanted, rounding * std::fabs(wanted) + 1e-6);
    }
    std::vector<float> numbers(draw(0, 999));
    double sum = 0;
    for (float& n : numbers) sum += n = static_cast<float>(uniform(1));
    compare("sum", read_pass(numbers.data(), numbers.size(), draw(1, 3), kIsa).sum, sum, 1e-3);
}

}  // namespace

int main(int count, char** words) {
    if (count != 3) return 2;
    const long long first = std::atoll(words[1]), last = first + std::atoll(words[2]);
    for (long long number = first; number < last; ++number) {
        chance.seed(static_cast<std::uint64_t>(number));
        std::printf("forest %lld ", number);  // what was wrong follows
        attention();
        linear_layer();
        norm_and_rotation();
        std::printf("right\n");
    }
    if (!(matrix_flops_per_s(Dtype::float32, 1, 1, kIsa) > 0)) return 1;
    std::printf("%s: %lld results\n", name_of(isa_named(name_of(kIsa))), compared);
}
