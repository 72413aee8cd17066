#include "packing.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "parallel.h"

namespace chunkbench {
namespace {

// Sixteen bytes as numbers of type U.
template <class U>
using Lane __attribute__((vector_size(16))) = U;

// Interleaves the first (High: second) halves of a and b: a0, b0, a1, b1, ...
template <class U, bool High, std::size_t... I>
Lane<U> interleave(Lane<U> a, Lane<U> b, std::index_sequence<I...>) {
    constexpr std::size_t n = sizeof...(I), first = High ? n / 2 : 0;
#if defined(__clang__) || __GNUC__ >= 12
    return __builtin_shufflevector(a, b, static_cast<int>(first + I / 2 + I % 2 * n)...);
#else
    return __builtin_shuffle(a, b, Lane<U>{static_cast<U>(first + I / 2 + I % 2 * n)...});
#endif
}

// [rows][columns] to [columns][rows], in n x n squares that fit into registers. log2(n) rounds of interleaving the
// upper and the lower half of the rows transpose a square.
template <class U>
void transpose(const U* from, std::int64_t rows, std::int64_t columns, U* to) {
    constexpr int n = 16 / sizeof(U);
    constexpr std::make_index_sequence<n> numbers;
    for (std::int64_t i = 0; i < columns; i += n) {
        for (std::int64_t t = 0; t < rows; t += n) {
            Lane<U> square[n], next[n];
            for (int a = 0; a < n; ++a) std::memcpy(&square[a], from + (t + a) * columns + i, sizeof(square[a]));
            for (int round = 1; round < n; round *= 2) {
                for (int a = 0; a < n / 2; ++a) {
                    next[2 * a] = interleave<U, false>(square[a], square[a + n / 2], numbers);
                    next[2 * a + 1] = interleave<U, true>(square[a], square[a + n / 2], numbers);
                }
                std::memcpy(square, next, sizeof(square));
            }
            for (int a = 0; a < n; ++a) std::memcpy(to + (i + a) * rows + t, &square[a], sizeof(square[a]));
        }
    }
}

// A block of sixteen tokens of K, [16][d], to [d/step][16][step], or back.
template <class T>
void transpose_block(const T* from, T* to, std::int64_t d, int step, bool back) {
    const auto transpose_as = [&](auto unit) {
        const auto* source = reinterpret_cast<const decltype(unit)*>(from);
        auto* target = reinterpret_cast<decltype(unit)*>(to);
        if (back) return transpose(source, d / step, 16, target);
        transpose(source, 16, d / step, target);
    };
    if (sizeof(T) * step == 4) return transpose_as(std::uint32_t());
    transpose_as(std::uint16_t());
}

// V of one token and head as the first or the second number of each pair of a row of pairs. The first one gets zeros as
// its partners: until they come, they are multiplied with weights of zero, and a NaN there would survive.
//
// All in registers: a buffer that is written word by word and read as a vector is read only when every store before it
// has reached the cache, that is, memory; so appending took a quarter more time.
inline void put_in_pairs(const std::uint16_t* from, std::uint16_t* pairs, std::int64_t count, bool second) {
    constexpr std::make_index_sequence<8> numbers;
    const Lane<std::uint16_t> none{};
    const Lane<std::uint32_t> lower = Lane<std::uint32_t>{} + 0xffffu;
    for (std::int64_t i = 0; i < count; i += 8) {
        Lane<std::uint16_t> values;
        std::memcpy(&values, from + i, sizeof(values));
        Lane<std::uint16_t> halves[2];  // of the eight pairs
        if (second) {
            halves[0] = interleave<std::uint16_t, false>(none, values, numbers);
            halves[1] = interleave<std::uint16_t, true>(none, values, numbers);
            for (int n = 0; n < 2; ++n) {
                Lane<std::uint32_t> before;
                std::memcpy(&before, pairs + 2 * i + 8 * n, sizeof(before));
                before = (before & lower) | reinterpret_cast<Lane<std::uint32_t>>(halves[n]);
                std::memcpy(pairs + 2 * i + 8 * n, &before, sizeof(before));
            }
        } else {
            halves[0] = interleave<std::uint16_t, false>(values, none, numbers);
            halves[1] = interleave<std::uint16_t, true>(values, none, numbers);
            std::memcpy(pairs + 2 * i, halves, sizeof(halves));
        }
    }
}

// Calls body(first dimension, dimensions, place) for every band of V of a token: `place` counts from a head's V in a
// chunk, in bfloat16 to the token's pairs.
template <class Body>
void for_bands(const Shape& shape, std::int64_t token, int step, const Body& body) {
    for (std::int64_t i = 0; i < shape.head_dim; i += kBand) {
        const std::int64_t band = std::min<std::int64_t>(kBand, shape.head_dim - i);
        body(i, band, i * shape.chunk_size + token / step * step * band);
    }
}

// Ask for lines that are written soon.
inline void fetch_to_write(const void* from, std::int64_t bytes) {
    for (std::int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(from) + at, 1);
}

// Pack `count` tokens into the slots from `slot` on, all in one block of sixteen. In k and v tokens are `width` apart.
template <class T>
void pack_block(const Shape& shape, const T* k, const T* v, std::int64_t width, T* chunk, std::int64_t slot,
                std::int64_t count, int step) {
    const std::int64_t size = static_cast<std::int64_t>(shape.chunk_size) * shape.head_dim, d = shape.head_dim;
    constexpr std::int64_t kAhead = 4;
    T rows[16 * kMaxHeadDim];  // a copy: tokens of k lie at distances that map to one cache set
    for (std::int64_t head = 0; head < shape.kv_heads; ++head, k += d, v += d, chunk += 2 * size) {
        T *block = chunk + slot / 16 * 16 * d, *values = chunk + size;
        const bool full = slot % 16 + count == 16;
        if (head + kAhead < shape.kv_heads) {
            const std::int64_t ahead = 2 * size * kAhead;
            const std::int64_t begin = full ? 0 : slot % 16;
            fetch_to_write(block + ahead + begin * d, (slot % 16 + count - begin) * d * sizeof(T));
            for_bands(shape, slot, step, [&](std::int64_t, std::int64_t band, std::int64_t place) {
                fetch_to_write(values + ahead + place, count * band * sizeof(T) * (count == 1 ? step : 1));
            });
        }
        T* to = full ? rows : block;
        if (full) std::memcpy(rows, block, slot % 16 * d * sizeof(T));
        for (std::int64_t t = 0; t < count; ++t) std::memcpy(to + (slot % 16 + t) * d, k + t * width, d * sizeof(T));
        if (full) transpose_block(rows, block, d, step, false);
        for (std::int64_t t = 0; t < count; ++t) {
            for_bands(shape, slot + t, step, [&](std::int64_t i, std::int64_t band, std::int64_t place) {
                const T* from = v + t * width + i;
                T* target = values + place;
                if (step == 1) {
                    std::memcpy(target, from, band * sizeof(T));
                } else {
                    put_in_pairs(reinterpret_cast<const std::uint16_t*>(from), reinterpret_cast<std::uint16_t*>(target),
                                 band, (slot + t) % 2 == 1);
                }
            });
        }
    }
}

template <class T>
void cut_all(const Shape& shape, T* chunk, std::int64_t tokens, std::int64_t held, int step) {
    const std::int64_t size = static_cast<std::int64_t>(shape.chunk_size) * shape.head_dim, d = shape.head_dim;
    T rows[16 * kMaxHeadDim];
    for (std::int64_t head = 0; head < shape.kv_heads; ++head, chunk += 2 * size) {
        if (tokens % 16 != 0 && held >= tokens / 16 * 16 + 16) {  // the block was full and becomes partial
            T* block = chunk + tokens / 16 * 16 * d;
            transpose_block(block, rows, d, step, true);
            std::memcpy(block, rows, 16 * d * sizeof(T));
        }
        if (step == 2 && tokens % 2 == 1) {  // the last token loses its partner
            for_bands(shape, tokens, step, [&](std::int64_t, std::int64_t band, std::int64_t place) {
                for (std::int64_t i = 0; i < band; ++i) chunk[size + place + 2 * i + 1] = 0;
            });
        }
    }
}

template <class T>
void pack_all(const Shape& shape, const void* k, const void* v, const std::int64_t* chunks, const std::int64_t* slots,
              std::int64_t tokens, int step, int threads) {
    const std::int64_t width = static_cast<std::int64_t>(shape.kv_heads) * shape.head_dim;
    const auto continues = [&](std::int64_t i) {
        return chunks[i] == chunks[i - 1] && slots[i] == slots[i - 1] + 1 && slots[i] % 16 != 0;
    };
    share_out(tokens, threads, [&](std::int64_t i, int) {
        if (i > 0 && continues(i)) return;  // already packed together with the token before it
        std::int64_t end = i + 1;
        while (end < tokens && continues(end)) ++end;
        pack_block(shape, static_cast<const T*>(k) + i * width, static_cast<const T*>(v) + i * width, width,
                   reinterpret_cast<T*>(chunks[i]), slots[i], end - i, step);
    });
}

}  // namespace

void pack(const Shape& shape, const void* k, const void* v, const std::int64_t* chunks, const std::int64_t* slots,
          std::int64_t tokens, int threads) {
    if (shape.dtype == Dtype::float32) return pack_all<float>(shape, k, v, chunks, slots, tokens, 1, threads);
    pack_all<std::uint16_t>(shape, k, v, chunks, slots, tokens, shape.dtype == Dtype::bfloat16 ? 2 : 1, threads);
}

void cut(const Shape& shape, void* chunk, int tokens, int held) {
    if (shape.dtype == Dtype::float32) return cut_all(shape, static_cast<float*>(chunk), tokens, held, 1);
    cut_all(shape, static_cast<std::uint16_t*>(chunk), tokens, held, shape.dtype == Dtype::bfloat16 ? 2 : 1);
}

}  // namespace chunkbench
