// The innermost loops of the probes. A part of loops.cpp, which says how it is compiled.
#pragma once

#include <cstddef>
#include <cstdint>

namespace chunkbench {
namespace CHUNKBENCH_NAMESPACE {
namespace {

// Latency times throughput gives the number of registers with sums that keep the units busy: 4 cycles and 2 units need
// 8. 12 leave room for CPUs with deeper pipelines.
constexpr int kSums = 12;
typedef float Register __attribute__((vector_size(64 / kRegisters)));

// Sum of `count` floats. The order of addition differs between instruction sets.
float sum_of(const float* data, std::size_t count) {
    constexpr int kWidth = sizeof(Register) / sizeof(float);
    Register sums[kSums] = {};
    std::size_t at = 0;
    for (; at + kSums * kWidth <= count; at += kSums * kWidth) {
        for (int k = 0; k < kSums; ++k) {
            Register loaded;
            __builtin_memcpy(&loaded, data + at + k * kWidth, sizeof(loaded));
            sums[k] += loaded;
        }
    }
    for (int k = 1; k < kSums; ++k) sums[0] += sums[k];
    float total = 0.0f;
    for (int i = 0; i < kWidth; ++i) total += sums[0][i];
    for (; at < count; ++at) total += data[at];
    return total;
}

// Floating-point operations of one iteration of `multiply_add`.
constexpr double kFlops = kSums * 16 / kRegisters * (kPairProducts ? 4.0 : 2.0);

// Only multiplies and adds in registers; with products of pairs, pairs of bfloat16 numbers. Returns a value that
// depends on all iterations, so that the compiler can remove none.
float multiply_add(std::int64_t iterations) {
#ifdef CHUNKBENCH_PAIR_PRODUCTS
    // Pairs of +1 and -1, times 1: the CPU computes every product, and the sums do not change. The instruction treats
    // denormals as zero, so they cannot slow it down.
    const std::uint32_t signs = 0xbf803f80u, ones = 0x3f803f80u;
    const Pairs left = one_pair(reinterpret_cast<const float*>(&signs));
    const Pairs right = one_pair(reinterpret_cast<const float*>(&ones));
    const auto next = [&](V16 x) { return add_products(x, left, right); };
#else
    // x * scale + step converges to step / (1 - scale) = 1, without overflow and denormals. No part of it is loop
    // invariant, so the compiler cannot move the product out of the loop.
    const V16 scale = set1(0.9990234375f), step = set1(0.0009765625f);
    const auto next = [&](V16 x) { return fma(x, scale, step); };
#endif
    float starts[16 * kSums / kRegisters];  // all different: no sum may take the place of another
    for (int i = 0; i < 16 * kSums / kRegisters; ++i) starts[i] = 0.5f * static_cast<float>(i);
    V16 sums[kSums / kRegisters];
    for (int k = 0; k < kSums / kRegisters; ++k) sums[k] = load(starts + 16 * k);
    for (std::int64_t i = 0; i < iterations; ++i) {
        for (V16& x : sums) x = next(x);
    }
    for (int k = 1; k < kSums / kRegisters; ++k) sums[0] = add(sums[0], sums[k]);
    return sum(sums[0]);
}

}  // namespace
}  // namespace CHUNKBENCH_NAMESPACE
}  // namespace chunkbench
