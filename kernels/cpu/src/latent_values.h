// V of latent chunks, which is the first numbers of K: transposed in registers. A part of loops.cpp, which says how it
// is compiled.
#pragma once

#include <cstdint>

#include "products.h"
#include "transpose.h"

namespace chunkbench {
namespace CHUNKBENCH_NAMESPACE {
namespace {

// Sixteen tokens of K from dimension i on as rows `[tokens][count]` of stored numbers, `row` apart. `full`: the block
// is stored as [d][16], not as [16][d].
template <class T>
inline void token_rows(const typename T::Stored* block, bool full, int tokens, int d, int i, int count,
                       typename T::Stored* to, int row) {
    if (!full) {
        for (int t = 0; t < tokens; ++t)
            __builtin_memcpy(to + t * row, block + static_cast<std::int64_t>(t) * d + i, count * sizeof(*to));
    } else if constexpr (sizeof(*to) * T::kStep == 4) {
        transpose(reinterpret_cast<const std::uint32_t*>(block + 16 * i), count / T::kStep, 16,
                  reinterpret_cast<std::uint32_t*>(to), row / T::kStep);
    } else {
        transpose(reinterpret_cast<const std::uint16_t*>(block + 16 * i), count, 16,
                  reinterpret_cast<std::uint16_t*>(to), row);
    }
}

// sums.out += weights * V of a latent chunk, whose V is the first `d_v` of the `d` numbers of K. Sixteen dimensions at
// a time are widened for all rows, as in `widened_tiles`.
template <class T>
[[gnu::noinline]] void add_latent_values(Rows sums, const typename T::Stored* keys, int tokens, int d, int d_v) {
    using Stored = typename T::Stored;
    alignas(kLine) float wide[16 * kMostWidened];
    for (int first = 0; first < tokens; first += kMostWidened) {
        const int some = tokens - first < kMostWidened ? tokens - first : kMostWidened;
        Rows rows = sums;
        rows.left += first;
        for (int i = 0; i < d_v; i += 16, rows.out += 16) {
            for (int t = 0; t < some; t += 16) {
                alignas(kLine) Stored of_tokens[16 * 16];
                const int count = some - t < 16 ? some - t : 16;
                const Stored* const block = keys + static_cast<std::int64_t>(first + t) * d;
                token_rows<T>(block, count == 16, count, d, i, 16, of_tokens, 16);
                for (int n = 0; n < count; ++n) store(wide + 16 * (t + n), T::widen(of_tokens + 16 * n));
            }
            if (some % 2 == 1) store(wide + 16 * some, set1(0.0f));  // its left side is a weight of 0
            tiles<Widened<T>, Side::keys, 1>(rows, {wide, 0, (some + 1) / 2}, reinterpret_cast<const char*>(wide));
        }
    }
}

// The V of a latent chunk in the layout of V, for products of pairs. `c`: tokens of a chunk.
template <class T>
[[gnu::noinline]] void pair_latent_values(const typename T::Stored* keys, int tokens, int d, int d_v, int c,
                                          typename T::Stored* to) {
    using Stored = typename T::Stored;
    constexpr std::make_index_sequence<8> numbers;
    alignas(kLine) Stored of_tokens[16 * kBand];
    for (int i = 0; i < d_v; i += kBand, to += kBand * c) {
        const int band = d_v - i < kBand ? d_v - i : kBand;
        for (int first = 0; first < tokens; first += 16) {
            const int count = tokens - first < 16 ? tokens - first : 16;
            token_rows<T>(keys + static_cast<std::int64_t>(first) * d, count == 16, count, d, i, band, of_tokens,
                          kBand);
            for (int t = 0; t < count; t += 2) {
                const Stored* const from = of_tokens + t * kBand;
                Stored* const out = to + static_cast<std::int64_t>(first + t) * band;
                for (int j = 0; j < band; j += 8) {
                    const Lane<Stored> a = lane_at(from + j), none{};
                    const Lane<Stored> b = t + 1 < count ? lane_at(from + kBand + j) : none;
                    put_lane(out + 2 * j, interleave<Stored, false>(a, b, numbers));
                    put_lane(out + 2 * j + 8, interleave<Stored, true>(a, b, numbers));
                }
            }
        }
    }
}

}  // namespace
}  // namespace CHUNKBENCH_NAMESPACE
}  // namespace chunkbench
