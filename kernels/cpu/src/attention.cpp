#include "attention.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "parallel.h"

namespace chunkbench {
namespace {

constexpr std::int64_t kUnitsPerThread = 64;

Loops loops_of(Isa isa) {
    switch (isa) {
#ifdef CHUNKBENCH_HAVE_X86
        case Isa::avx2: return loops_avx2();
        case Isa::avx512: return loops_avx512();
#endif
#ifdef CHUNKBENCH_HAVE_AVX512_BF16
        case Isa::avx512_bf16: return loops_avx512_bf16();
#endif
        default: return loops_portable();
    }
}

// Calls body(i, thread) for i = 0 .. count - 1. A thread that has finished one index takes the next free one.
template <class Body>
void share_out(std::int64_t count, int threads, const Body& body) {
    if (count == 0) return;
    if (threads > count) threads = static_cast<int>(count);
    std::atomic<std::int64_t> next{0};
    parallel(threads, [&](int thread) {
        for (std::int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) body(i, thread);
    });
}

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

// Clear the pair partner of an unpaired last bfloat16 token: it is multiplied with zero, and a NaN there would survive.
template <class T>
void clear_partner(T* value, std::int64_t c, std::int64_t d, std::int64_t last) {
    T* place = value + last / 2 * 32 + 1;
    for (std::int64_t i = 0; i < d; ++i) place[i / 16 * 16 * c + i % 16 * 2] = 0;
}

// Write sixteen bfloat16 numbers of V as the first of their pairs, with zeros as the second, or as the second of them.
inline void put_in_pairs(const std::uint16_t* from, void* pairs, bool second) {
    std::uint32_t line[16];
    if (second) {
        std::memcpy(line, pairs, sizeof(line));
        for (int j = 0; j < 16; ++j) line[j] = (line[j] & 0xffffu) | static_cast<std::uint32_t>(from[j]) << 16;
    } else {
        for (int j = 0; j < 16; ++j) line[j] = from[j];
    }
    std::memcpy(pairs, line, sizeof(line));
}

// Pack `count` tokens into the slots from `slot` on, all in one block of sixteen. In k and v tokens are `width` apart.
template <class T>
void pack_block(const Shape& shape, const T* k, const T* v, std::int64_t width, T* key, T* value, std::int64_t slot,
                std::int64_t count, int step) {
    const std::int64_t c = shape.chunk_size, d = shape.head_dim;
    T rows[16 * kMaxHeadDim];  // a copy: tokens of k lie at distances that map to one cache set
    for (std::int64_t head = 0; head < shape.kv_heads; ++head, k += d, v += d, key += c * d, value += c * d) {
        T* block = key + slot / 16 * 16 * d;
        const bool full = slot % 16 + count == 16;
        T* to = full ? rows : block;
        if (full) std::memcpy(rows, block, slot % 16 * d * sizeof(T));
        for (std::int64_t t = 0; t < count; ++t) std::memcpy(to + (slot % 16 + t) * d, k + t * width, d * sizeof(T));
        if (full) transpose_block(rows, block, d, step, false);
        for (std::int64_t t = 0; t < count; ++t) {  // V [d/16][c/step][16][step]
            const std::int64_t token = slot + t;
            T* place = value + token / step * 16 * step;
            const T* from = v + t * width;
            for (std::int64_t i = 0; i < d; i += 16, place += 16 * c, from += 16) {
                if (step == 1) {
                    std::memcpy(place, from, 16 * sizeof(T));
                } else {
                    put_in_pairs(reinterpret_cast<const std::uint16_t*>(from), place, token % 2 == 1);
                }
            }
        }
    }
}

template <class T>
void cut_all(const Shape& shape, T* key, T* value, std::int64_t tokens, std::int64_t held, int step) {
    const std::int64_t c = shape.chunk_size, d = shape.head_dim;
    T rows[16 * kMaxHeadDim];
    for (std::int64_t head = 0; head < shape.kv_heads; ++head, key += c * d, value += c * d) {
        if (tokens % 16 != 0 && held >= tokens / 16 * 16 + 16) {  // the block was full and becomes partial
            T* block = key + tokens / 16 * 16 * d;
            transpose_block(block, rows, d, step, true);
            std::memcpy(block, rows, 16 * d * sizeof(T));
        }
        if (step == 2 && tokens % 2 == 1) clear_partner(value, c, d, tokens - 1);
    }
}

template <class T>
void pack_all(const Shape& shape, const void* k, const void* v, const std::int64_t* keys, const std::int64_t* values,
              const std::int64_t* slots, std::int64_t tokens, int step, int threads) {
    const std::int64_t width = static_cast<std::int64_t>(shape.kv_heads) * shape.head_dim;
    const auto continues = [&](std::int64_t i) {
        return keys[i] == keys[i - 1] && slots[i] == slots[i - 1] + 1 && slots[i] % 16 != 0;
    };
    share_out(tokens, threads, [&](std::int64_t i, int) {
        if (i > 0 && continues(i)) return;  // already packed together with the token before it
        std::int64_t end = i + 1;
        while (end < tokens && continues(end)) ++end;
        pack_block(shape, static_cast<const T*>(k) + i * width, static_cast<const T*>(v) + i * width, width,
                   reinterpret_cast<T*>(keys[i]), reinterpret_cast<T*>(values[i]), slots[i], end - i, step);
    });
}

}  // namespace

std::int64_t scratch_floats(const Shape& shape, std::int64_t rows) {
    const std::int64_t group = shape.heads / shape.kv_heads;
    const std::int64_t floats = rows * group * (2 * shape.head_dim + shape.chunk_size + 16 + 1);
    return (floats + 31) / 32 * 32;  // full cache lines, so that threads do not share a line
}

void decode(const Shape& shape, const Work& work, std::int64_t max_rows, int threads, Isa isa, Counter* left_by) {
    const Loops loops = loops_of(isa);
    const std::int64_t scratch = scratch_floats(shape, max_rows);
    const std::int64_t heads = shape.kv_heads, first = work.partial_items;
    const Item* last = work.items + first;
    const std::int64_t count = work.item_count - first;
    // The last items of rows run head by head, so that blocks of one head that several block tables share stay in the
    // cache. A unit of work has `together` items, few enough that there are many units per thread.
    const std::int64_t wanted = count * heads / (threads * kUnitsPerThread);
    const std::int64_t together = wanted < 1 ? 1 : wanted > count ? count : wanted;
    const std::int64_t parts = (count + together - 1) / together;
    // Items that write partial results run `lead` heads ahead of the items that fold them in. So a thread rarely waits
    // for a head, and while one thread computes on shared chunks, another one reads private chunks.
    const std::int64_t lead = first == 0 ? 0 : std::min(heads, threads / first + 1);
    for (std::int64_t head = 0; head < heads; ++head) left_by[head].store(0, std::memory_order_relaxed);

    const auto write_partials = [&](std::int64_t item, std::int64_t head, float* space) {
        loops.item(shape, work, work.items[item], nullptr, static_cast<int>(head), space);
        left_by[head].fetch_add(1, std::memory_order_release);
    };
    const auto finish = [&](std::int64_t part, std::int64_t head, float* space) {
        while (left_by[head].load(std::memory_order_acquire) < first) std::this_thread::yield();
        const std::int64_t end = std::min(count, (part + 1) * together);
        for (std::int64_t n = part * together; n < end; ++n) {
            loops.item(shape, work, last[n], n + 1 < end ? last + n + 1 : nullptr, static_cast<int>(head), space);
        }
    };
    share_out((first + parts) * heads, threads, [&](std::int64_t unit, int thread) {
        float* space = work.scratch + thread * scratch;
        if (unit < lead * first) return write_partials(unit % first, unit / first, space);
        unit -= lead * first;
        const std::int64_t per_head = first + parts, mixed = per_head * (heads - lead);
        if (unit >= mixed) return finish((unit - mixed) % parts, heads - lead + (unit - mixed) / parts, space);
        // Mix both kinds of units evenly, so that not all threads compute (or read) at the same time.
        const std::int64_t position = unit % per_head, head = unit / per_head;
        const std::int64_t before = (position * first + per_head - 1) / per_head;
        if (before * per_head < (position + 1) * first) return write_partials(before, head + lead, space);
        finish(position - before, head, space);
    });
}

void pack(const Shape& shape, const void* k, const void* v, const std::int64_t* keys, const std::int64_t* values,
          const std::int64_t* slots, std::int64_t tokens, int threads) {
    if (shape.dtype == Dtype::float32) {
        pack_all<float>(shape, k, v, keys, values, slots, tokens, 1, threads);
    } else {
        const int step = shape.dtype == Dtype::bfloat16 ? 2 : 1;
        pack_all<std::uint16_t>(shape, k, v, keys, values, slots, tokens, step, threads);
    }
}

void cut(const Shape& shape, void* key, void* value, int tokens, int held) {
    if (shape.dtype == Dtype::float32) {
        cut_all(shape, static_cast<float*>(key), static_cast<float*>(value), tokens, held, 1);
    } else {
        const int step = shape.dtype == Dtype::bfloat16 ? 2 : 1;
        cut_all(shape, static_cast<std::uint16_t*>(key), static_cast<std::uint16_t*>(value), tokens, held, step);
    }
}

}  // namespace chunkbench
