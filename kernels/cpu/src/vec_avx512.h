// Sixteen floats as one AVX-512 register; see vec_avx2.h. CHUNKBENCH_PAIR_PRODUCTS adds products of bfloat16 pairs.
#pragma once

#ifdef CHUNKBENCH_EMULATE_AVX512
#include "emulated_avx512.h"
#else
#include <immintrin.h>
#endif

#include <cstdint>

namespace chunkbench {
namespace CHUNKBENCH_NAMESPACE {

struct V16 {
    __m512 all;
};

constexpr int kRegisters = 1;
constexpr int kRows = 12;  // by 2 blocks: 24 sums, 2 operands (4 if pairs are widened) and a broadcast
constexpr int kPairRows = 12;
constexpr int kBlocks = 2;  // two products share a broadcast; one broadcast per product would saturate the load ports
constexpr int kStreamRows = 4;  // by 4 blocks: 16 sums, 4 operands and a broadcast
constexpr int kStreams = 4;
constexpr int kKeyParts = 2, kValueParts = 8;  // parts of K and V that few rows read side by side
constexpr int kFetchedValueParts = 2;          // parts of V, if the kernel also prefetches

inline V16 set1(float x) { return {_mm512_set1_ps(x)}; }
inline V16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, V16 x) { _mm512_storeu_ps(p, x.all); }
inline V16 add(V16 a, V16 b) { return {_mm512_add_ps(a.all, b.all)}; }
inline V16 subtract(V16 a, V16 b) { return {_mm512_sub_ps(a.all, b.all)}; }
inline V16 mul(V16 a, V16 b) { return {_mm512_mul_ps(a.all, b.all)}; }
inline V16 divide(V16 a, V16 b) { return {_mm512_div_ps(a.all, b.all)}; }
inline V16 fma(V16 a, V16 b, V16 c) { return {_mm512_fmadd_ps(a.all, b.all, c.all)}; }
inline V16 max(V16 a, V16 b) { return {_mm512_max_ps(a.all, b.all)}; }
inline float sum(V16 x) { return _mm512_reduce_add_ps(x.all); }

inline float top(V16 x) { return _mm512_reduce_max_ps(x.all); }

// If n is not an integer, its floor counts; 0 for n = -inf.
constexpr float kLeastPower = -160.0f;
inline V16 scale_by_power(V16 x, V16 n) { return {_mm512_scalef_ps(x.all, n.all)}; }
inline V16 round(V16 x) { return {_mm512_roundscale_ps(x.all, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }

inline float first(V16 x) { return _mm_cvtss_f32(_mm512_castps512_ps128(x.all)); }
inline V16 first_lane(float x) { return {_mm512_maskz_mov_ps(1, _mm512_set1_ps(x))}; }
inline V16 with_lane(V16 x, int lane, float value) {
    return {_mm512_mask_mov_ps(x.all, static_cast<__mmask16>(1 << lane), _mm512_set1_ps(value))};
}

inline V16 load_half(const std::uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline void store_half(std::uint16_t* p, V16 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x.all, _MM_FROUND_TO_NEAREST_INT));
}

// Sixteen integers of 8 bits.
inline V16 load_int8(const std::int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline V16 load_uint8(const std::uint8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}

// Sixteen numbers E4M3 as float16 numbers, times 2^-8: their bits have the same order, and denormals stay exact.
inline V16 load_fp8(const std::uint8_t* p) {
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i magnitude = _mm256_set1_epi16(0x7f), none = _mm256_set1_epi16(0x7e00);
    const __m256i is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(wide, magnitude), magnitude);
    const __m256i half = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(static_cast<short>(0xbfff)));
    return {_mm512_cvtph_ps(_mm256_or_si256(half, _mm256_and_si256(is_nan, none)))};
}

inline V16 load_bfloat16(const std::uint16_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
inline void store_bfloat16(std::uint16_t* p, V16 x) {
    const __m512i bits = _mm512_castps_si512(x.all), half = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(half, _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const __m512i quiet = _mm512_or_si512(half, _mm512_set1_epi32(0x40));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x.all, x.all, _CMP_UNORD_Q);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(is_nan, rounded, quiet)));
}

inline void load_pairs(const std::uint16_t* p, V16& first, V16& second) {
    const __m512i both = _mm512_loadu_si512(p);
    first = {_mm512_castsi512_ps(_mm512_slli_epi32(both, 16))};
    second = {_mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}

#ifdef CHUNKBENCH_PAIR_PRODUCTS
constexpr bool kPairProducts = true;

// x - floor(x), 0 for -inf.
inline V16 fraction(V16 x) { return {_mm512_reduce_ps(x.all, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)}; }

// Sixteen pairs of bfloat16 numbers.
struct Pairs {
    __m512i all;
};
inline Pairs sixteen_pairs(const std::uint16_t* p) { return {_mm512_loadu_si512(p)}; }
// One pair, stored in the space of a float, sixteen times.
inline Pairs one_pair(const float* p) {
    int pair;
    __builtin_memcpy(&pair, p, 4);
    return {_mm512_set1_epi32(pair)};
}
// sums + a.first * b.first + a.second * b.second.
inline V16 add_products(V16 sums, Pairs a, Pairs b) {
    return {_mm512_dpbf16_ps(sums.all, (__m512bh)a.all, (__m512bh)b.all)};
}

// Sixteen floats rounded to bfloat16. Denormals become 0; products treat them as 0 anyway.
inline void store_rounded(std::uint16_t* p, V16 x) {
    const auto rounded = _mm512_cvtneps_pbh(x.all);
    __builtin_memcpy(p, &rounded, sizeof(rounded));
}
#else
constexpr bool kPairProducts = false;
#endif

}  // namespace CHUNKBENCH_NAMESPACE
}  // namespace chunkbench
