// The AVX-512 intrinsics of vec_avx512.h for CPUs without AVX-512: those of SIMDe, and the few that SIMDe 0.7.4 lacks.
// Slow, for tests only.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>

namespace chunkbench {
namespace emulated {

struct Lanes {
    float at[16];
    explicit Lanes(__m512 x) { _mm512_storeu_ps(at, x); }
};

inline float reduce_add(__m512 x) {
    Lanes lanes(x);
    for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) lanes.at[i] += lanes.at[i + half];
    }
    return lanes.at[0];
}

inline float reduce_max(__m512 x) {
    Lanes lanes(x);
    for (int i = 1; i < 16; ++i) {
        if (lanes.at[i] > lanes.at[0]) lanes.at[0] = lanes.at[i];
    }
    return lanes.at[0];
}

inline __m512i round_to_integers(__m512 x) {
    const Lanes lanes(x);
    int integers[16];
    for (int i = 0; i < 16; ++i) integers[i] = static_cast<int>(__builtin_nearbyintf(lanes.at[i]));
    return _mm512_loadu_si512(integers);
}

inline __m512 from_half(__m256i x) {
    float lanes[16];
    _mm256_storeu_ps(lanes, _mm256_cvtph_ps(_mm256_castsi256_si128(x)));
    _mm256_storeu_ps(lanes + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1)));
    return _mm512_loadu_ps(lanes);
}

inline __m256i to_half(__m512 x) {
    const Lanes lanes(x);
    const __m128i low = _mm256_cvtps_ph(_mm256_loadu_ps(lanes.at), _MM_FROUND_TO_NEAREST_INT);
    const __m128i high = _mm256_cvtps_ph(_mm256_loadu_ps(lanes.at + 8), _MM_FROUND_TO_NEAREST_INT);
    return _mm256_set_m128i(high, low);
}

inline __m256i to_bfloat16(__m512 x) {
    const Lanes lanes(x);
    std::uint16_t halves[16];
    for (int i = 0; i < 16; ++i) {
        std::uint32_t bits;
        std::memcpy(&bits, &lanes.at[i], 4);
        const std::uint32_t magnitude = bits & 0x7fffffffu;
        if (magnitude < 0x00800000u) bits &= 0x80000000u;  // the instruction treats denormals as zero
        const bool is_nan = magnitude > 0x7f800000u;
        halves[i] =
            static_cast<std::uint16_t>(is_nan ? (bits >> 16) | 0x40u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    }
    __m256i result;
    std::memcpy(&result, halves, sizeof(result));
    return result;
}

inline __m512 fraction(__m512 x) {
    const Lanes lanes(x);
    float fractions[16];
    for (int i = 0; i < 16; ++i) {
        const float at = lanes.at[i];
        fractions[i] = std::isinf(at) ? 0.0f : at - std::floor(at);
    }
    return _mm512_loadu_ps(fractions);
}

inline __m512i widen_integers(__m256i x) {
    std::uint16_t halves[16];
    std::memcpy(halves, &x, sizeof(halves));
    std::uint32_t integers[16];
    for (int i = 0; i < 16; ++i) integers[i] = halves[i];
    return _mm512_loadu_si512(integers);
}

inline __m256i narrow_integers(__m512i x) {
    std::uint32_t integers[16];
    _mm512_storeu_si512(integers, x);
    std::uint16_t halves[16];
    for (int i = 0; i < 16; ++i) halves[i] = static_cast<std::uint16_t>(integers[i]);
    __m256i result;
    std::memcpy(&result, halves, sizeof(result));
    return result;
}

}  // namespace emulated
}  // namespace chunkbench

#define _mm512_reduce_add_ps ::chunkbench::emulated::reduce_add
#define _mm512_reduce_max_ps ::chunkbench::emulated::reduce_max
#define _mm512_cvtps_epi32 ::chunkbench::emulated::round_to_integers
#define _mm512_cvtph_ps ::chunkbench::emulated::from_half
#define _mm512_cvtps_ph(x, rounding) ::chunkbench::emulated::to_half(x)
#define _mm512_reduce_ps(x, rounding) ::chunkbench::emulated::fraction(x)
#define _mm512_cvtneps_pbh ::chunkbench::emulated::to_bfloat16
#define _mm512_cvtepu16_epi32 ::chunkbench::emulated::widen_integers
#define _mm512_cvtepi32_epi16 ::chunkbench::emulated::narrow_integers
