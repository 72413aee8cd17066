// Products of a few rows with blocks of sixteen numbers, for every dtype. They also prefetch the data that is read
// next. A part of loops.cpp, which says how it is compiled.
#pragma once

#include <cstdint>

namespace chunkbench {
namespace CHUNKBENCH_NAMESPACE {
namespace {

// How the loops read K and V of a dtype. They take kStep values of the summed index at a time. kBytes: bytes of a
// number in memory. kWide: whether `widen` wrote the numbers.
struct Float32 {
    using Stored = float;
    static constexpr int kStep = 1, kBytes = 4;
    static constexpr bool kPairs = false, kWide = false;
    static V16 widen(const Stored* p) { return load(p); }
    static void put(Stored* p, V16 x) { store(p, x); }
};

struct Float16 {
    using Stored = std::uint16_t;
    static constexpr int kStep = 1, kBytes = 2;
    static constexpr bool kPairs = false, kWide = false;
    static V16 widen(const Stored* p) { return load_half(p); }
    static void put(Stored* p, V16 x) { store_half(p, x); }
};

struct Bfloat16 {
    using Stored = std::uint16_t;
    static constexpr int kStep = 2, kBytes = 2;
    static constexpr bool kPairs = true, kWide = false;
    static V16 widen(const Stored* p) { return load_bfloat16(p); }
    static void put(Stored* p, V16 x) { store_bfloat16(p, x); }
};

// K and V in 8 bits. `widen` gives the stored numbers, without scales; those of Fp8 times 2^-8.
struct Int8 {
    using Stored = std::int8_t;
    static constexpr int kStep = 1, kBytes = 1;
    static constexpr bool kPairs = false, kWide = false;
    static V16 widen(const Stored* p) { return load_int8(p); }
};

struct Uint8 {
    using Stored = std::uint8_t;
    static constexpr int kStep = 1, kBytes = 1;
    static constexpr bool kPairs = false, kWide = false;
    static V16 widen(const Stored* p) { return load_uint8(p); }
};

struct Fp8 {
    using Stored = std::uint8_t;
    static constexpr int kStep = 1, kBytes = 1;
    static constexpr bool kPairs = false, kWide = false;
    static V16 widen(const Stored* p) { return load_fp8(p); }
};

// K and V of T that `widen` has written as floats, two values of the summed index in a step. A step still stands for as
// many bytes of memory as before.
template <class T>
struct Widened {
    using Stored = float;
    static constexpr int kStep = 2, kBytes = T::kBytes;
    static constexpr bool kPairs = false, kWide = true;
    static V16 widen(const Stored* p) { return load(p); }
};

// Whether all rows of a block take numbers that were widened once.
template <class T>
constexpr bool kWidensOnce = T::kBytes == 1 || (T::kPairs && !kPairProducts);

// Whether products take pairs of T's numbers in their stored form. Then the left side is rounded to such pairs, too.
template <class T>
constexpr bool kInPairs = T::kPairs && kPairProducts;

// For lambdas around sums: GCC calls the larger ones, even in functions that are `flatten`. Then sums lie on the stack,
// and products of 7 to 12 rows take four times as long.
#define ALWAYS_INLINE __attribute__((always_inline))

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

// Whether a product reads K, in blocks of sixteen tokens that are summed over d, or V, in blocks of sixteen dimensions
// that are summed over tokens.
enum class Side { keys, values };

// The memory that is read next: the K or V of the next head or chunk.
struct Ahead {
    const char* from;
    std::int64_t bytes;

    // The part of the memory that begins at part `first` and has `some` of `all` parts of equal size.
    Ahead part(int first, int some, int all) const { return {from + bytes / all * first, bytes / all * some}; }
};

constexpr int kLine = 64;

// Bring the line at an address into the first-level cache, or, `Far`, into the second-level cache.
template <bool Far>
inline void fetch_line(const char* from) {
    if constexpr (Far) {
        __builtin_prefetch(from, 0, 2);
    } else {
        __builtin_prefetch(from, 0, 3);
    }
}

inline void fetch(Ahead ahead) {
    for (std::int64_t at = 0; at < ahead.bytes; at += kLine) fetch_line<true>(ahead.from + at);
}

// The left side of a product, rows `row` numbers apart, and its result, `out_row` numbers apart, to which it is added
// if `add`.
struct Rows {
    const float* left;
    std::int64_t row;
    float* out;
    std::int64_t out_row;
    bool add;
    int count;
};

// The right side: blocks of `steps` times 16 * kStep numbers. In K, where the numbers of a block are contiguous, blocks
// are `stride` numbers apart; in V, where the numbers of a step are contiguous, steps are.
template <class T, Side Of>
struct Right {
    const typename T::Stored* at;
    std::int64_t stride;
    int steps;
    static constexpr int kWidth = 16 * T::kStep;
    static constexpr int kStepBytes = kWidth * T::kBytes;
    std::int64_t block() const { return Of == Side::keys ? stride : kWidth; }
    std::int64_t step() const { return Of == Side::keys ? kWidth : stride; }
};

// sums[r][s] += left[r][i ..] * right[s] for one step: R rows times S blocks of sixteen.
template <class T, int R, int S>
[[gnu::always_inline]] inline void add_step(V16 (&sums)[R][S], const float* left, std::int64_t row, std::int64_t i,
                                            const typename T::Stored* right, std::int64_t block) {
    if constexpr (T::kStep == 1 || T::kWide) {
        times<T::kStep>([&](auto k) ALWAYS_INLINE {
            V16 operand[S];
            times<S>([&](auto s) { operand[s] = T::widen(right + s * block + 16 * k); });
            times<R>([&](auto r) ALWAYS_INLINE {
                const V16 value = set1(left[r * row + i + k]);
                times<S>([&](auto s) { sums[r][s] = fma(value, operand[s], sums[r][s]); });
            });
        });
    } else if constexpr (kInPairs<T>) {
#ifdef CHUNKBENCH_PAIR_PRODUCTS
        // The left side holds pairs of bfloat16 numbers; a pair has the size of a float.
        Pairs operand[S];
        times<S>([&](auto s) { operand[s] = sixteen_pairs(right + s * block); });
        times<R>([&](auto r) ALWAYS_INLINE {
            const Pairs value = one_pair(left + r * row + i);
            times<S>([&](auto s) { sums[r][s] = add_products(sums[r][s], value, operand[s]); });
        });
#endif
    } else {
        V16 first[S], second[S];
        times<S>([&](auto s) { load_pairs(right + s * block, first[s], second[s]); });
        times<R>([&](auto r) ALWAYS_INLINE {
            const V16 even = set1(left[r * row + i]), odd = set1(left[r * row + i + 1]);
            times<S>([&](auto s) { sums[r][s] = fma(even, first[s], sums[r][s]); });
            times<S>([&](auto s) { sums[r][s] = fma(odd, second[s], sums[r][s]); });
        });
    }
}

// The same step without arithmetic: reads its bytes and adds them, whatever they mean.
template <class T, int S>
[[gnu::always_inline]] inline void read_step(V16 (&sums)[1][S], const typename T::Stored* right, std::int64_t block) {
    constexpr bool kLines = 16 * T::kStep * sizeof(typename T::Stored) == kLine;
    times<S>([&](auto s) {
        if constexpr (kLines) {
            sums[0][s] = add(sums[0][s], load(reinterpret_cast<const float*>(right + s * block)));
        } else {
            sums[0][s] = add(sums[0][s], T::widen(right + s * block));
        }
    });
}

// Floats of the left side that one step takes.
template <class T>
constexpr int kLeft = T::kStep == 2 && !kInPairs<T> ? 2 : 1;

// out[r][16 * s ..] = (add ? out : 0) + sums, which `body(sums)` computes, for R rows and S blocks.
template <int R, int S, class Body>
[[gnu::always_inline]] inline void with_sums(const Rows& rows, const Body& body) {
    V16 sums[R][S];
    if (rows.add) {
        times<R>([&](auto r) { times<S>([&](auto s) { sums[r][s] = load(rows.out + r * rows.out_row + 16 * s); }); });
    } else {
        times<R>([&](auto r) { times<S>([&](auto s) { sums[r][s] = set1(0.0f); }); });
    }
    body(sums);
    times<R>([&](auto r) { times<S>([&](auto s) { store(rows.out + r * rows.out_row + 16 * s, sums[r][s]); }); });
}

// Many rows: arithmetic is the limit. Each step fetches as many bytes from `next` on as N blocks have, for the next
// product, which finds them in the second-level cache: K and V of a chunk would fill the first one. The next step
// fetches from `advance` bytes further on. (`flatten`: a call for every step would keep sums on the stack; `noinline`:
// in its callers, registers are short.)
template <class T, Side Of, int R, int S, int N>
[[gnu::flatten, gnu::noinline]] void tile(const Rows& rows, const Right<T, Of>& given, const char* next,
                                          std::int64_t advance) {
    with_sums<R, S>(rows, [&](V16(&sums)[R][S]) ALWAYS_INLINE {
        constexpr int kBytes = N * Right<T, Of>::kStepBytes;
        Right<T, Of> right = given;
        const float* left = rows.left;
        const std::int64_t row = rows.row;
        const std::int64_t end = kLeft<T> * static_cast<std::int64_t>(right.steps);
        for (std::int64_t i = 0; i < end; i += kLeft<T>, right.at += right.step(), next += advance) {
            times<(kBytes + kLine - 1) / kLine>([&](auto line) { fetch_line<true>(next + line * kLine); });
            add_step<T, R, S>(sums, left, row, i, right.at, right.block());
        }
    });
}

// One row: memory is the limit. `Parts` parts of the steps advance side by side, so that the CPU follows several
// streams of addresses. `Fetches`: the lines at `next` are asked for a whole piece ahead, for which only the
// second-level cache has room beside the present piece. `Reads`: without arithmetic.
//
// A line takes as few instructions as possible: the more lines stand in the CPU's window of instructions, the more of
// them it waits for at the same time. So `Parts` is known to the compiler, and this stays a function of its own:
// inlined into its caller, it took 1.05 to 1.1 of the time.
template <class T, Side Of, int S, int Parts, bool Fetches, bool Reads>
[[gnu::flatten, gnu::noinline]] void stream(const Rows& rows, const Right<T, Of>& right, const char* next) {
    with_sums<1, S>(rows, [&](V16(&sums)[1][S]) ALWAYS_INLINE {
        constexpr int kBytes = S * Right<T, Of>::kStepBytes;
        const std::int64_t each = right.steps / Parts, step = right.step(), block = right.block();
        const auto* at = right.at;
        const float* left = rows.left;
        const float* const end = left + each * kLeft<T>;
        for (; left < end; left += kLeft<T>, at += step) {
            times<Parts>([&](auto part) {
                const std::int64_t ahead = part * each;
                if constexpr (Fetches) {
                    times<kBytes / kLine>([&](auto line) { fetch_line<true>(next + ahead * kBytes + line * kLine); });
                }
                if constexpr (Reads) {
                    read_step<T, S>(sums, at + ahead * step, block);
                } else {
                    add_step<T, 1, S>(sums, left + ahead * kLeft<T>, 0, 0, at + ahead * step, block);
                }
            });
            if constexpr (Fetches) next += kBytes;
        }
    });
}

// `stream` with the template arguments that read best on this CPU. next: nullptr if nothing can be fetched line by
// line.
template <class T, Side Of, int S, bool Reads>
inline void stream_as(ReadMode mode, const Rows& rows, const Right<T, Of>& right, const char* next) {
    constexpr int kParts = Of == Side::keys ? kKeyParts : kValueParts;
    const bool fetches = next != nullptr && mode.fetch_early;
    if (mode.side_by_side && right.steps % kParts == 0) {
        if (fetches) return stream<T, Of, S, kParts, true, Reads>(rows, right, next);
        return stream<T, Of, S, kParts, false, Reads>(rows, right, nullptr);
    }
    // The order of a sum must not depend on `next`, which depends on what other threads have taken.
    constexpr int kFetched = Of == Side::keys ? 1 : kFetchedValueParts;
    if (mode.fetch_early && right.steps % kFetched == 0) {
        if (fetches) return stream<T, Of, S, kFetched, true, Reads>(rows, right, next);
        return stream<T, Of, S, kFetched, false, Reads>(rows, right, nullptr);
    }
    if (fetches) return stream<T, Of, S, 1, true, Reads>(rows, right, next);
    stream<T, Of, S, 1, false, Reads>(rows, right, nullptr);
}

// Calls the `tile` for rows.count rows, which is between Least and R.
template <class T, Side Of, int R, int Least, int S, int N>
inline void tile_of(const Rows& rows, const Right<T, Of>& right, const char* next,
                    std::int64_t advance = N * Right<T, Of>::kStepBytes) {
    if (rows.count == R) {
        tile<T, Of, R, S, N>(rows, right, next, advance);
    } else if constexpr (R > Least) {
        tile_of<T, Of, R - 1, Least, S, N>(rows, right, next, advance);
    }
}

// Most rows of a tile.
template <class T>
constexpr int kTileRowsOf = T::kStep == 1 || T::kWide || kInPairs<T> ? kRows : kPairRows;

// `tile` for any number of rows, in tiles of nearly equal size. If there are several tiles, each fetches one block of
// `next`, because memory delivers no faster. If there is only one block, each tile fetches an equal part of it: one
// tile that fetched all of it would wait for memory, and the others would not use memory at all.
template <class T, Side Of, int S>
inline void tiles(Rows rows, const Right<T, Of>& right, const char* next) {
    constexpr int kMost = kTileRowsOf<T>, kLeast = (kMost + 1) / 2;
    if (rows.count <= kMost) return tile_of<T, Of, kMost, 1, S, S>(rows, right, next);
    const int tiles = (rows.count + kMost - 1) / kMost;
    for (int n = 0, left = rows.count; n < tiles; ++n) {
        rows.count = (left + tiles - n - 1) / (tiles - n);
        if constexpr (S == 1) {
            const std::int64_t advance = Right<T, Of>::kStepBytes / tiles;
            tile_of<T, Of, kMost, kLeast, 1, 1>(rows, right, next + n * right.steps * advance, advance);
        } else {
            // A tile for which nothing is left to fetch asks for the first block again, which is in the cache.
            const int block = n < S ? n : 0;
            tile_of<T, Of, kMost, kLeast, S, 1>(rows, right, next + block * right.steps * Right<T, Of>::kStepBytes);
        }
        left -= rows.count;
        rows.left += rows.count * rows.row;
        rows.out += rows.count * rows.out_row;
    }
}

// Most values of the summed index for which `widened_tiles` has room.
constexpr int kMostWidened = 256;

// A tile of rows that also writes what it has widened, for the other tiles: so stores run beside arithmetic. Blocks of
// `wide` are `block` floats apart.
template <class T, Side Of, int R, int S>
[[gnu::flatten, gnu::noinline]] void widening_tile(const Rows& rows, const Right<T, Of>& given, float* wide,
                                                   std::int64_t block) {
    with_sums<R, S>(rows, [&](V16(&sums)[R][S]) ALWAYS_INLINE {
        Right<T, Of> right = given;
        const float* left = rows.left;
        const std::int64_t row = rows.row;
        const float* const end = left + T::kStep * static_cast<std::int64_t>(right.steps);
        for (; left < end; left += T::kStep, right.at += right.step(), wide += 16 * T::kStep) {
            V16 operands[T::kStep][S];
            times<S>([&](auto s) {
                if constexpr (T::kStep == 1) {
                    operands[0][s] = T::widen(right.at + s * right.block());
                } else {
                    load_pairs(right.at + s * right.block(), operands[0][s], operands[1][s]);
                }
            });
            times<T::kStep>([&](auto k) ALWAYS_INLINE {
                times<S>([&](auto s) { store(wide + s * block + 16 * k, operands[k][s]); });
                times<R>([&](auto r) ALWAYS_INLINE {
                    const V16 value = set1(left[r * row + k]);
                    times<S>([&](auto s) { sums[r][s] = fma(value, operands[k][s], sums[r][s]); });
                });
            });
        }
    });
}

template <class T, Side Of, int R, int Least, int S>
inline void widening_tile_of(const Rows& rows, const Right<T, Of>& right, float* wide, std::int64_t block) {
    if (rows.count == R) {
        widening_tile<T, Of, R, S>(rows, right, wide, block);
    } else if constexpr (R > Least) {
        widening_tile_of<T, Of, R - 1, Least, S>(rows, right, wide, block);
    }
}

// `tiles` of more rows than a tile has, whose numbers are widened once for all of them; 8 KB of floats for a block of
// 128 values.
template <class T, Side Of, int S>
[[gnu::noinline]] void widened_tiles(Rows rows, const Right<T, Of>& right, const char* next) {
    constexpr int kMost = kTileRowsOf<T>, kLeast = (kMost + 1) / 2;
    alignas(kLine) float wide[S * 16 * kMostWidened];
    const int values = T::kStep * right.steps, steps = (values + 1) / 2;
    const std::int64_t block = std::int64_t{32} * steps;
    const int count = rows.count, first = count / ((count + kMost - 1) / kMost);
    rows.count = first;
    widening_tile_of<T, Of, kMost, kLeast, S>(rows, right, wide, block);
    if (values % 2 == 1)  // its left side is a weight of 0
        times<S>([&](auto s) { store(wide + s * block + 16 * values, set1(0.0f)); });
    rows.count = count - first;
    rows.left += first * rows.row;
    rows.out += first * rows.out_row;
    tiles<Widened<T>, Side::keys, S>(rows, {wide, block, steps}, next);
}

// Bring the first lines of every page of a piece into the cache. The CPU's own prefetching stops at the end of a page,
// and these lines start it again on the next page.
inline void open_pages(Ahead ahead) {
    constexpr int kPage = 4096, kLines = 4;
    for (std::int64_t at = 0; at < ahead.bytes; at += kPage) {
        times<kLines>([&](auto n) { fetch_line<false>(ahead.from + at + n * kLine); });
    }
}

// rows.out[..][16 * blocks] = (add ? out : 0) + left * right. Also fetches `ahead`: line by line during the product if
// it is as long as `right`, else before it. `Reads`: reads as one row does, without arithmetic. `opens`: see
// open_pages, which costs time where arithmetic is the limit.
template <class T, Side Of, bool Reads>
inline void multiply(Rows rows, Right<T, Of> right, int blocks, Ahead ahead, ReadMode mode, bool opens = true) {
    const std::int64_t bytes = static_cast<std::int64_t>(right.steps) * Right<T, Of>::kStepBytes;
    const bool together = ahead.bytes == blocks * bytes;
    if (!together) {
        fetch(ahead);
    } else if (opens && rows.count > 1) {
        open_pages(ahead);
    }
    const char* next = together ? ahead.from : reinterpret_cast<const char*>(right.at);
    const auto skip = [&](int count) {
        blocks -= count;
        right.at += count * right.block();
        next += count * bytes;
        rows.out += 16 * count;
    };
    for (; rows.count == 1 && blocks >= kStreams; skip(kStreams)) {
        stream_as<T, Of, kStreams, Reads>(mode, rows, right, together ? next : nullptr);
    }
    if constexpr (Reads) {
        for (; blocks > 0; skip(1)) stream<T, Of, 1, 1, false, true>(rows, right, nullptr);
        return;
    }
    for (; rows.count <= kStreamRows && blocks >= kStreams; skip(kStreams)) {  // several blocks: independent sums
        tile_of<T, Of, kStreamRows, 1, kStreams, kStreams>(rows, right, next);
    }
    if constexpr (kWidensOnce<T>) {
        if (rows.count > kTileRowsOf<T> && T::kStep * right.steps <= kMostWidened) {
            for (; blocks >= kBlocks; skip(kBlocks)) widened_tiles<T, Of, kBlocks>(rows, right, next);
            for (; blocks > 0; skip(1)) widened_tiles<T, Of, 1>(rows, right, next);
            return;
        }
    }
    for (; blocks >= kBlocks; skip(kBlocks)) tiles<T, Of, kBlocks>(rows, right, next);
    for (; blocks > 0; skip(1)) tiles<T, Of, 1>(rows, right, next);
}

}  // namespace
}  // namespace CHUNKBENCH_NAMESPACE
}  // namespace chunkbench
