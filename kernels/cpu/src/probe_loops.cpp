#include "probe_loops.h"

#include <cstring>

#ifdef CHUNKBENCH_HAVE_X86
#include <immintrin.h>
#endif

// Latency times throughput gives the number of independent sums that keep the units busy: 4 cycles and 2 units need 8.
// 12 leave room for CPUs with deeper pipelines. The loops over them have constant bounds and are unrolled into
// registers.

namespace chunkbench {
namespace {

constexpr int kSums = 12;

// x = x * kScale + kStep converges to kStep / (1 - kScale) = 1, without overflow and denormals. No part of it is loop
// invariant, so the compiler cannot move the product out of the loop.
constexpr float kScale = 0.9990234375f;
constexpr float kStep = 0.0009765625f;

typedef float Four __attribute__((vector_size(16)));

float sum_tail(const float* data, std::size_t count) {
    float total = 0.0f;
    for (std::size_t i = 0; i < count; ++i) total += data[i];
    return total;
}

float sum_portable(const float* data, std::size_t count) {
    constexpr std::size_t step = 4 * kSums;
    Four sums[kSums] = {};
    std::size_t at = 0;
    for (; at + step <= count; at += step) {
        for (int k = 0; k < kSums; ++k) {
            Four loaded;
            std::memcpy(&loaded, data + at + 4 * k, sizeof loaded);
            sums[k] += loaded;
        }
    }
    for (int k = 1; k < kSums; ++k) sums[0] += sums[k];
    return sums[0][0] + sums[0][1] + sums[0][2] + sums[0][3] + sum_tail(data + at, count - at);
}

float multiply_add_portable(std::int64_t iterations) {
    Four sums[kSums];
    for (int k = 0; k < kSums; ++k) sums[k] = Four{} + 0.5f * static_cast<float>(k);
    for (std::int64_t i = 0; i < iterations; ++i) {
        for (int k = 0; k < kSums; ++k) sums[k] = sums[k] * kScale + kStep;
    }
    for (int k = 1; k < kSums; ++k) sums[0] += sums[k];
    return sums[0][0] + sums[0][1] + sums[0][2] + sums[0][3];
}

#ifdef CHUNKBENCH_HAVE_X86

__attribute__((target("avx2,fma"))) float sum_avx2(const float* data, std::size_t count) {
    constexpr std::size_t step = 8 * kSums;
    __m256 sums[kSums];
    for (int k = 0; k < kSums; ++k) sums[k] = _mm256_setzero_ps();
    std::size_t at = 0;
    for (; at + step <= count; at += step) {
        for (int k = 0; k < kSums; ++k) sums[k] = _mm256_add_ps(sums[k], _mm256_loadu_ps(data + at + 8 * k));
    }
    for (int k = 1; k < kSums; ++k) sums[0] = _mm256_add_ps(sums[0], sums[k]);
    float lanes[8];
    _mm256_storeu_ps(lanes, sums[0]);
    return sum_tail(lanes, 8) + sum_tail(data + at, count - at);
}

__attribute__((target("avx2,fma"))) float multiply_add_avx2(std::int64_t iterations) {
    const __m256 scale = _mm256_set1_ps(kScale);
    const __m256 step = _mm256_set1_ps(kStep);
    __m256 sums[kSums];
    for (int k = 0; k < kSums; ++k) sums[k] = _mm256_set1_ps(0.5f * static_cast<float>(k));
    for (std::int64_t i = 0; i < iterations; ++i) {
        for (int k = 0; k < kSums; ++k) sums[k] = _mm256_fmadd_ps(sums[k], scale, step);
    }
    for (int k = 1; k < kSums; ++k) sums[0] = _mm256_add_ps(sums[0], sums[k]);
    float lanes[8];
    _mm256_storeu_ps(lanes, sums[0]);
    return sum_tail(lanes, 8);
}

__attribute__((target("avx512f"))) float sum_avx512(const float* data, std::size_t count) {
    constexpr std::size_t step = 16 * kSums;
    __m512 sums[kSums];
    for (int k = 0; k < kSums; ++k) sums[k] = _mm512_setzero_ps();
    std::size_t at = 0;
    for (; at + step <= count; at += step) {
        for (int k = 0; k < kSums; ++k) sums[k] = _mm512_add_ps(sums[k], _mm512_loadu_ps(data + at + 16 * k));
    }
    for (int k = 1; k < kSums; ++k) sums[0] = _mm512_add_ps(sums[0], sums[k]);
    float lanes[16];
    _mm512_storeu_ps(lanes, sums[0]);
    return sum_tail(lanes, 16) + sum_tail(data + at, count - at);
}

__attribute__((target("avx512f"))) float multiply_add_avx512(std::int64_t iterations) {
    const __m512 scale = _mm512_set1_ps(kScale);
    const __m512 step = _mm512_set1_ps(kStep);
    __m512 sums[kSums];
    for (int k = 0; k < kSums; ++k) sums[k] = _mm512_set1_ps(0.5f * static_cast<float>(k));
    for (std::int64_t i = 0; i < iterations; ++i) {
        for (int k = 0; k < kSums; ++k) sums[k] = _mm512_fmadd_ps(sums[k], scale, step);
    }
    for (int k = 1; k < kSums; ++k) sums[0] = _mm512_add_ps(sums[0], sums[k]);
    float lanes[16];
    _mm512_storeu_ps(lanes, sums[0]);
    return sum_tail(lanes, 16);
}

#endif

#ifdef CHUNKBENCH_HAVE_AVX512_BF16

__attribute__((target("avx512f,avx512bf16"))) float dot_avx512_bf16(std::int64_t iterations) {
    // Pairs of +1 and -1, times 1: the CPU computes every product, and the sums do not change. The instruction treats
    // denormals as zero, so they cannot slow it down.
    const __m512i pairs = _mm512_set1_epi32(static_cast<int>(0xbf803f80u));
    const __m512i ones = _mm512_set1_epi32(0x3f803f80);
    __m512bh left, right;
    std::memcpy(&left, &pairs, sizeof left);
    std::memcpy(&right, &ones, sizeof right);
    __m512 sums[kSums];
    for (int k = 0; k < kSums; ++k) sums[k] = _mm512_set1_ps(0.5f * static_cast<float>(k));
    for (std::int64_t i = 0; i < iterations; ++i) {
        for (int k = 0; k < kSums; ++k) sums[k] = _mm512_dpbf16_ps(sums[k], left, right);
    }
    for (int k = 1; k < kSums; ++k) sums[0] = _mm512_add_ps(sums[0], sums[k]);
    float lanes[16];
    _mm512_storeu_ps(lanes, sums[0]);
    return sum_tail(lanes, 16);
}

#endif

}  // namespace

float sum(Isa isa, const float* data, std::size_t count) {
#ifdef CHUNKBENCH_HAVE_X86
    if (isa >= Isa::avx512) return sum_avx512(data, count);
    if (isa == Isa::avx2) return sum_avx2(data, count);
#endif
    (void)isa;
    return sum_portable(data, count);
}

MatrixProbe matrix_probe(Isa isa, bool bfloat16_dot) {
    (void)bfloat16_dot;
#ifdef CHUNKBENCH_HAVE_AVX512_BF16
    if (isa >= Isa::avx512_bf16 && bfloat16_dot) return {dot_avx512_bf16, kSums * 16 * 4.0};
#endif
#ifdef CHUNKBENCH_HAVE_X86
    if (isa >= Isa::avx512) return {multiply_add_avx512, kSums * 16 * 2.0};
    if (isa == Isa::avx2) return {multiply_add_avx2, kSums * 8 * 2.0};
#endif
    (void)isa;
    return {multiply_add_portable, kSums * 4 * 2.0};
}

}  // namespace chunkbench
