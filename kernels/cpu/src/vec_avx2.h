// Sixteen floats as two AVX registers. Every instruction set has such a header, with the same names in its own
// namespace. `loops.cpp` is compiled once with each of them.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace chunkbench {
namespace avx2 {

struct V16 {
    __m256 lo, hi;
};

constexpr int kRegisters = 2;   // registers of one V16
constexpr int kRows = 6;        // query rows in registers at a time: 6 x 2 sums, 2 operands, 1 broadcast; 16 registers
constexpr int kPairRows = 5;    // query rows if a product needs two operands at a time
constexpr int kBlocks = 1;      // blocks per step when several rows are multiplied
constexpr int kStreamRows = 1;  // at most so many rows read kStreams blocks at a time, with independent sums
constexpr int kStreams = 4;
constexpr int kKeyParts = 2, kValueParts = 8;  // parts of K and V that few rows read side by side
constexpr int kFetchedValueParts = 1;          // parts of V, if the kernel also prefetches
constexpr bool kPairProducts = false;

inline V16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline V16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, V16 x) {
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
}
inline V16 add(V16 a, V16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline V16 subtract(V16 a, V16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline V16 mul(V16 a, V16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline V16 divide(V16 a, V16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline V16 fma(V16 a, V16 b, V16 c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
// If one operand is NaN, the result is b.
inline V16 max(V16 a, V16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }

inline float sum(V16 x) {
    const __m256 both = _mm256_add_ps(x.lo, x.hi);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

inline float top(V16 x) {
    const __m256 both = _mm256_max_ps(x.lo, x.hi);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

// x * 2^n for integers n from kLeastPower (gives 0) to 127. x is near 1; denormal results are not exact.
constexpr float kLeastPower = -127.0f;
inline __m256 scale_half(__m256 x, __m256 n) {
    const __m256i raised = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    const __m256 scaled = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), raised));
    return _mm256_andnot_ps(_mm256_cmp_ps(n, _mm256_set1_ps(kLeastPower), _CMP_EQ_OQ), scaled);
}
inline V16 scale_by_power(V16 x, V16 n) { return {scale_half(x.lo, n.lo), scale_half(x.hi, n.hi)}; }
inline V16 round(V16 x) {
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.lo, nearest), _mm256_round_ps(x.hi, nearest)};
}

// The first number; a vector of this number and zeros; x with `value` in one lane.
inline float first(V16 x) { return _mm256_cvtss_f32(x.lo); }
inline V16 first_lane(float x) { return {_mm256_zextps128_ps256(_mm_set_ss(x)), _mm256_setzero_ps()}; }
inline V16 with_lane(V16 x, int lane, float value) {
    const __m256i numbers = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256 lo = _mm256_castsi256_ps(_mm256_cmpeq_epi32(numbers, _mm256_set1_epi32(lane)));
    const __m256 hi = _mm256_castsi256_ps(_mm256_cmpeq_epi32(numbers, _mm256_set1_epi32(lane - 8)));
    return {_mm256_blendv_ps(x.lo, _mm256_set1_ps(value), lo), _mm256_blendv_ps(x.hi, _mm256_set1_ps(value), hi)};
}

// Sixteen float16 numbers.
inline V16 load_half(const std::uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline void store_half(std::uint16_t* p, V16 x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(x.hi, _MM_FROUND_TO_NEAREST_INT));
}

// Sixteen bfloat16 numbers: the upper halves of floats.
inline __m256 from_bfloat16(const std::uint16_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline __m128i to_bfloat16(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x), half = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(half, _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i quiet = _mm256_or_si256(half, _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i all = _mm256_blendv_epi8(rounded, quiet, is_nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
}
inline V16 load_bfloat16(const std::uint16_t* p) { return {from_bfloat16(p), from_bfloat16(p + 8)}; }
inline void store_bfloat16(std::uint16_t* p, V16 x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_bfloat16(x.lo));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), to_bfloat16(x.hi));
}

// Sixteen integers of 8 bits.
inline __m256 from_integers(__m256i x) { return _mm256_cvtepi32_ps(x); }
inline V16 load_int8(const std::int8_t* p) {
    const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {from_integers(_mm256_cvtepi8_epi32(all)), from_integers(_mm256_cvtepi8_epi32(_mm_srli_si128(all, 8)))};
}
inline V16 load_uint8(const std::uint8_t* p) {
    const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {from_integers(_mm256_cvtepu8_epi32(all)), from_integers(_mm256_cvtepu8_epi32(_mm_srli_si128(all, 8)))};
}

// Sixteen numbers E4M3 as float16 numbers, times 2^-8: their bits have the same order, and denormals stay exact.
inline __m256i half_of_fp8(const std::uint8_t* p) {
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i magnitude = _mm256_set1_epi16(0x7f), none = _mm256_set1_epi16(0x7e00);
    const __m256i is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(wide, magnitude), magnitude);
    const __m256i half = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(static_cast<short>(0xbfff)));
    return _mm256_or_si256(half, _mm256_and_si256(is_nan, none));
}
inline V16 load_fp8(const std::uint8_t* p) {
    const __m256i half = half_of_fp8(p);
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(half)), _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1))};
}

// Sixteen pairs of bfloat16 numbers: the first and the second of each pair.
inline void load_pairs(const std::uint16_t* p, V16& first, V16& second) {
    const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
    first = {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
    second = {_mm256_castsi256_ps(_mm256_and_si256(a, mask)), _mm256_castsi256_ps(_mm256_and_si256(b, mask))};
}

}  // namespace avx2
}  // namespace chunkbench
