// The loops of linear layers and of the operations between them in a model. A part of loops.cpp, which says how it is
// compiled.
#pragma once

#include <cstdint>

#include "linear.h"
#include "products.h"
#include "softmax.h"
#include "tile_products.h"

namespace chunkbench {
namespace CHUNKBENCH_NAMESPACE {
namespace {

// silu(gate) * up = gate * e^min(gate, 0) / (1 + e^-|gate|) * up. Exponentials of numbers that are not positive cannot
// overflow. The second operand of max keeps a NaN.
inline V16 gated(V16 gate, V16 up) {
    const V16 zero = set1(0.0f), less = set1(-kLog2E), other = subtract(zero, gate);
    const V16 below = exp2(mul(less, max(zero, other))), size = exp2(mul(less, max(other, gate)));
    return mul(divide(mul(gate, below), add(set1(1.0f), size)), up);
}

// Write the sums of some rows and blocks to the output.
template <class T>
inline void finish(const LinearWork& work, std::int64_t row, int rows, std::int64_t first, int blocks,
                   const float* sums) {
    using Stored = typename T::Stored;
    const Linear& layer = work.layer;
    const bool gates = layer.finish == Finish::gate;
    const std::int64_t width = 16 * layer.blocks / (gates ? 2 : 1);
    for (int r = 0; r < rows; ++r, sums += 16 * blocks) {
        const auto sum = [&](int block) {
            const V16 y = load(sums + 16 * block);
            return layer.bias ? add(y, load(layer.bias + 16 * (first + block))) : y;
        };
        const std::int64_t at = (row + r) * width + 16 * first / (gates ? 2 : 1);
        auto* y = static_cast<Stored*>(work.y) + at;
        auto* y32 = static_cast<float*>(work.y) + at;
        switch (layer.finish) {
            case Finish::store:
                for (int b = 0; b < blocks; ++b) T::put(y + 16 * b, sum(b));
                break;
            case Finish::store32:
                for (int b = 0; b < blocks; ++b) store(y32 + 16 * b, sum(b));
                break;
            case Finish::add32:
                for (int b = 0; b < blocks; ++b) store(y32 + 16 * b, add(load(y32 + 16 * b), sum(b)));
                break;
            case Finish::gate:
                for (int b = 0; b < blocks; b += 2) T::put(y + 8 * b, gated(sum(b), sum(b + 1)));
                break;
        }
    }
}

// `multiply` of several tiles of rows, a part of the inputs at a time, so that all tiles find its weights in the
// first-level cache. Each part fetches the next one, the last part the beginning of `ahead`.
template <class T>
void multiply_by_pieces(const Rows& rows, const Right<T, Side::keys>& right, int blocks, Ahead ahead, ReadMode mode) {
    constexpr int kMostSteps = 384;
    const int pieces = (right.steps + kMostSteps - 1) / kMostSteps, steps = (right.steps + pieces - 1) / pieces;
    const std::int64_t width = Right<T, Side::keys>::kWidth, bytes = Right<T, Side::keys>::kStepBytes;
    for (int block = 0; block < blocks; ++block) {
        for (int first = 0; first < right.steps; first += steps) {
            const int left = right.steps - first, some = left < steps ? left : steps;
            Rows part{
                rows.left + first * kLeft<T>, rows.row, rows.out + 16 * block, rows.out_row, first > 0, rows.count};
            const auto* const at = right.at + block * right.stride + first * width;
            const bool last = block + 1 == blocks && first + some == right.steps;
            const Ahead next = last ? Ahead{ahead.from, ahead.bytes ? some * bytes : 0}
                                    : Ahead{reinterpret_cast<const char*>(at + some * width), some * bytes};
            multiply<T, Side::keys, false>(part, {at, right.stride, some}, 1, next, mode);
        }
    }
}

template <class T>
void linear_blocks(const LinearWork& work, std::int64_t first, int blocks, float* scratch) {
    using Stored = typename T::Stored;
    constexpr bool kAsStored = kInPairs<T> || sizeof(Stored) == sizeof(float);  // x is the left side as it lies there
    constexpr ReadMode kMode{true, false};
    const std::int64_t in = work.layer.in, block = 16 * in;
    const auto* weights = static_cast<const Stored*>(work.layer.weights) + first * block;
    const Right<T, Side::keys> right{weights, block, static_cast<int>(in / T::kStep)};
    const bool goes_on = first + work.ahead + blocks <= work.layer.blocks;
    const Ahead ahead{reinterpret_cast<const char*>(weights + work.ahead * block),
                      static_cast<std::int64_t>(goes_on ? blocks * block * sizeof(Stored) : 0)};
    float* const sums = scratch;
    float* const widened = scratch + 16 * kLinearBlocks * kLinearRows;
    for (std::int64_t row = 0; row < work.rows; row += kLinearRows) {
        const int rows = static_cast<int>(work.rows - row < kLinearRows ? work.rows - row : kLinearRows);
        const Stored* x = static_cast<const Stored*>(work.x) + row * in;
        Rows left{reinterpret_cast<const float*>(x), in / (kInPairs<T> ? 2 : 1), sums, 16 * blocks, false, rows};
        if constexpr (!kAsStored) {
            for (std::int64_t i = 0; i < rows * in; i += 16) store(widened + i, T::widen(x + i));
            left.left = widened;
        }
#ifdef CHUNKBENCH_TILE_PRODUCTS
        if constexpr (kInPairs<T>) {
            if (rows >= kTileRows && in % (2 * kTileSteps) == 0) {
                const Tiles tiles(rows);
                Spread next{ahead.from, ahead.from + ahead.bytes};
                multiply_tiles(left, right, blocks, next, 1);
                finish<T>(work, row, rows, first, blocks, sums);
                continue;
            }
        }
#endif
        if (kBlocks == 1 && rows > kTileRowsOf<T>) {
            multiply_by_pieces<T>(left, right, blocks, ahead, kMode);
        } else {
            multiply<T, Side::keys, false>(left, right, blocks, ahead, kMode);
        }
        finish<T>(work, row, rows, first, blocks, sums);
    }
}

template <class T>
void norm_row(const float* from, std::int64_t size, const float* weight, float epsilon, typename T::Stored* to) {
    V16 squares = set1(0.0f);
    for (std::int64_t i = 0; i < size; i += 16) squares = fma(load(from + i), load(from + i), squares);
    const V16 factor = set1(1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(size) + epsilon));
    for (std::int64_t i = 0; i < size; i += 16) T::put(to + i, mul(mul(load(from + i), factor), load(weight + i)));
}

template <class T>
void rotate_row(const typename T::Stored* x, int heads, int d, const float* cosines, const float* sines,
                typename T::Stored* to) {
    for (int head = 0; head < heads; ++head, x += d, to += d) {
        for (int i = 0; i < d / 2; i += 16) {
            const V16 a = T::widen(x + i), b = T::widen(x + d / 2 + i), c = load(cosines + i), s = load(sines + i);
            T::put(to + i, subtract(mul(a, c), mul(b, s)));
            T::put(to + d / 2 + i, fma(b, c, mul(a, s)));
        }
    }
}

template <class Body>
inline void as_dtype(Dtype dtype, const Body& body) {
    switch (dtype) {
        case Dtype::float32: return body(Float32());
        case Dtype::float16: return body(Float16());
        case Dtype::bfloat16: return body(Bfloat16());
    }
}

inline void linear_of(const LinearWork& work, std::int64_t first, int blocks, float* scratch) {
    as_dtype(work.layer.dtype, [&](auto t) { linear_blocks<decltype(t)>(work, first, blocks, scratch); });
}

inline void norm_of(Dtype dtype, const float* from, std::int64_t size, const float* weight, float epsilon, void* to) {
    as_dtype(dtype, [&](auto t) {
        norm_row<decltype(t)>(from, size, weight, epsilon, static_cast<typename decltype(t)::Stored*>(to));
    });
}

inline void rotate_of(Dtype dtype, const void* x, int heads, int d, const float* cosines, const float* sines,
                      void* to) {
    as_dtype(dtype, [&](auto t) {
        using Stored = typename decltype(t)::Stored;
        rotate_row<decltype(t)>(static_cast<const Stored*>(x), heads, d, cosines, sines, static_cast<Stored*>(to));
    });
}

}  // namespace
}  // namespace CHUNKBENCH_NAMESPACE
}  // namespace chunkbench
