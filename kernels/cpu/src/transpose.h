// Transposition in registers. Everything here is the translation unit's own, so that each instruction set has its copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace chunkbench {
namespace {

// Sixteen bytes as numbers of type U.
template <class U>
using Lane __attribute__((vector_size(16))) = U;

template <class U>
inline Lane<U> lane_at(const U* from) {
    Lane<U> lane;
    __builtin_memcpy(&lane, from, sizeof(lane));
    return lane;
}
template <class U, class L>
inline void put_lane(U* to, L lane) {
    __builtin_memcpy(to, &lane, sizeof(lane));
}

// Interleaves the first (High: second) halves of a and b: a0, b0, a1, b1, ...
template <class U, bool High, std::size_t... I>
inline Lane<U> interleave(Lane<U> a, Lane<U> b, std::index_sequence<I...>) {
    constexpr std::size_t n = sizeof...(I), first = High ? n / 2 : 0;
#if defined(__clang__) || __GNUC__ >= 12
    return __builtin_shufflevector(a, b, static_cast<int>(first + I / 2 + I % 2 * n)...);
#else
    return __builtin_shuffle(a, b, Lane<U>{static_cast<U>(first + I / 2 + I % 2 * n)...});
#endif
}

// [rows][columns] to [columns][rows], in n x n squares that fit into registers. log2(n) rounds of interleaving the
// upper and the lower half of the rows transpose a square. `stride`: numbers from a column to the next one in `to`.
template <class U>
inline void transpose(const U* from, std::int64_t rows, std::int64_t columns, U* to, std::int64_t stride) {
    constexpr int n = 16 / sizeof(U);
    constexpr std::make_index_sequence<n> numbers;
    for (std::int64_t i = 0; i < columns; i += n) {
        for (std::int64_t t = 0; t < rows; t += n) {
            Lane<U> square[n], next[n];
            for (int a = 0; a < n; ++a) square[a] = lane_at(from + (t + a) * columns + i);
            for (int round = 1; round < n; round *= 2) {
                for (int a = 0; a < n / 2; ++a) {
                    next[2 * a] = interleave<U, false>(square[a], square[a + n / 2], numbers);
                    next[2 * a + 1] = interleave<U, true>(square[a], square[a + n / 2], numbers);
                }
                __builtin_memcpy(square, next, sizeof(square));
            }
            for (int a = 0; a < n; ++a) put_lane(to + (i + a) * stride + t, square[a]);
        }
    }
}

}  // namespace
}  // namespace chunkbench
