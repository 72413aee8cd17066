// The online softmax of decode attention, which turns scores into weights. A part of loops.cpp, which says how it is
// compiled.
#pragma once

#include <cstdint>

#include "products.h"

namespace chunkbench {
namespace CHUNKBENCH_NAMESPACE {
namespace {

constexpr float kInfinity = __builtin_inff();
constexpr float kLowest = -3.4028234663852886e38f;  // the smallest finite float: replaces a maximum of -inf
constexpr float kLog2E = 1.44269504088896341f;

// 2^x for x <= 0, 0 for -inf, NaN for NaN; relative error below 2e-7. 2^x = 2^n 2^f with |f| <= 1/2; 2^f comes from the
// minimax polynomial for the relative error on this interval (2e-9).
inline V16 exp2(V16 x) {
    const V16 clamped = max(set1(kLeastPower), x);
    const V16 n = round(clamped);
    const V16 f = subtract(clamped, n);
    V16 y = set1(0.00015345774590969086f);
    y = fma(y, f, set1(0.0013399930903688073f));
    y = fma(y, f, set1(0.009618489071726799f));
    y = fma(y, f, set1(0.05550328642129898f));
    y = fma(y, f, set1(0.24022646248340607f));
    y = fma(y, f, set1(0.6931471824645996f));
    y = fma(y, f, set1(1.0f));
    return scale_by_power(y, n);
}

// 2^x as `exp2`, for weights that are rounded to bfloat16: relative error below 3e-6, a thousandth of that rounding.
// 2^x = 2^floor(x) 2^f with 0 <= f < 1; minimax polynomial for the relative error.
template <class T>
inline V16 weight_of(V16 x) {
#ifdef CHUNKBENCH_PAIR_PRODUCTS
    if constexpr (kInPairs<T>) {
        const V16 f = fraction(x);
        V16 y = set1(0.01353416792f);
        y = fma(y, f, set1(0.05201146061f));
        y = fma(y, f, set1(0.2414427569f));
        y = fma(y, f, set1(0.6930038345f));
        y = fma(y, f, set1(1.000002593f));
        return scale_by_power(y, x);
    }
#endif
    return exp2(x);
}

// 2^(a - b), or 1 if both are the same infinity.
inline float exp2_difference(float a, float b) { return a == b ? 1.0f : first(exp2(set1(a - b))); }

// Cap the scores of `tokens` tokens: a scaled score x becomes cap * tanh(x / cap). Scores of -inf after them stay.
inline void cap_scores(float* scores, int tokens, float scale, float cap) {
    const V16 to_power = set1(-2.0f * kLog2E * scale / cap), one = set1(1.0f), least = set1(1e-30f);
    const V16 to_score = set1(cap / scale), zero = set1(0.0f);
    for (int i = 0; i < tokens; i += 16) {
        const V16 score = load(scores + i), size = max(subtract(zero, score), score);
        const V16 power = exp2(mul(size, to_power));  // e^(-2 |x / cap|)
        const V16 sized = divide(subtract(one, power), add(one, power));
        store(scores + i, mul(to_score, mul(sized, divide(score, max(size, least)))));
    }
    for (int i = tokens; i % 16 != 0; ++i) scores[i] = -kInfinity;
}

// Largest of `count` values, a multiple of 16. Ignores NaN, which becomes a NaN weight later.
inline float largest(const float* values, int count) {
    V16 peak = set1(-kInfinity);
    for (int i = 0; i < count; i += 16) peak = max(load(values + i), peak);
    return top(peak);
}

// Write sixteen values from index i of a row on as the left side of a product: as floats, or rounded to bfloat16.
template <class T>
inline void put_left(float* row, int i, V16 values) {
    if constexpr (kInPairs<T>) {
#ifdef CHUNKBENCH_PAIR_PRODUCTS
        store_rounded(reinterpret_cast<std::uint16_t*>(row) + i, values);
#endif
    } else {
        store(row + i, values);
    }
}

// Weights if the largest score is +inf: 1 for every score of +inf, 0 for the others. Adds them to `weights`.
template <class T>
inline void weigh_infinite(float* scores, int count, float* weights) {
    for (int i = 0; i < count; i += 16) {
        float lanes[16];
        for (int j = 0; j < 16; ++j) {
            const float score = scores[i + j];
            lanes[j] = score != score ? score : score == kInfinity ? 1.0f : 0.0f;
            weights[j] += lanes[j];
        }
        put_left<T>(scores, i, load(lanes));
    }
}

// Replace the scores of one row by weights 2^(scale * (score - largest)), as the left side of a product. Adds the
// weights to `weights`, lane by lane. If the largest score grows, scales the sums so far to the new one.
template <class T>
inline void weigh(float* scores, int count, float scale, float& peak, float* weights, float* output, int d) {
    const float new_peak = largest(scores, count);
    if (new_peak > peak) {
        const V16 shrink = set1(exp2_difference(scale * peak, scale * new_peak));
        peak = new_peak;
        store(weights, mul(load(weights), shrink));
        for (int i = 0; i < d; i += 16) store(output + i, mul(load(output + i), shrink));
    }
    if (peak == kInfinity) return weigh_infinite<T>(scores, count, weights);
    const float base = peak < kLowest ? kLowest : peak;
    const V16 offset = set1(-scale * base), factor = set1(scale);
    V16 total = load(weights);
    for (int i = 0; i < count; i += 16) {
        const V16 weight = weight_of<T>(fma(load(scores + i), factor, offset));
        put_left<T>(scores, i, weight);  // pairs need half the space, so this overwrites no unread score
        total = add(total, weight);
    }
    store(weights, total);
}

}  // namespace
}  // namespace CHUNKBENCH_NAMESPACE
}  // namespace chunkbench
