// Sixteen floats as one AVX-512 register; see vec_avx2.h. With CHUNKBENCH_PAIR_PRODUCTS also products of bfloat16
// pairs.
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

constexpr int kRows = 12;  // by 2 blocks: 24 sums, 2 operands (4 where pairs are widened) and a broadcast
constexpr int kPairRows = 12;
constexpr int kBlocks = 2;  // so that a broadcast serves two products: one each would keep the load ports busy
constexpr int kStreams = 4;

inline V16 set1(float x) { return {_mm512_set1_ps(x)}; }
inline V16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, V16 x) { _mm512_storeu_ps(p, x.all); }
inline V16 add(V16 a, V16 b) { return {_mm512_add_ps(a.all, b.all)}; }
inline V16 mul(V16 a, V16 b) { return {_mm512_mul_ps(a.all, b.all)}; }
inline V16 fma(V16 a, V16 b, V16 c) { return {_mm512_fmadd_ps(a.all, b.all, c.all)}; }
inline V16 max(V16 a, V16 b) { return {_mm512_max_ps(a.all, b.all)}; }
inline float sum(V16 x) { return _mm512_reduce_add_ps(x.all); }

inline float top(V16 x) { return _mm512_reduce_max_ps(x.all); }

inline V16 scale_by_power(V16 x, V16 n) {
    const __m512i raised = _mm512_slli_epi32(_mm512_cvtps_epi32(n.all), 23);
    return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x.all), raised))};
}
inline V16 round(V16 x) { return {_mm512_roundscale_ps(x.all, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline V16 keep_from(V16 x, V16 test, V16 bound) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(test.all, bound.all, _CMP_NLT_UQ), x.all)};
}

inline V16 load_half(const std::uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline void store_half(std::uint16_t* p, V16 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x.all, _MM_FROUND_TO_NEAREST_INT));
}

inline void load_pairs(const std::uint16_t* p, V16& first, V16& second) {
    const __m512i both = _mm512_loadu_si512(p);
    first = {_mm512_castsi512_ps(_mm512_slli_epi32(both, 16))};
    second = {_mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}

#ifdef CHUNKBENCH_PAIR_PRODUCTS
constexpr bool kPairProducts = true;

// sums + a.first * b.first + a.second * b.second, for one pair a and sixteen pairs b of bfloat16 numbers.
inline V16 add_pair_products(V16 sums, std::uint32_t a, const std::uint16_t* b) {
    const __m512i broadcast = _mm512_set1_epi32(static_cast<int>(a));
    const __m512i pairs = _mm512_loadu_si512(b);
    return {_mm512_dpbf16_ps(sums.all, (__m512bh)broadcast, (__m512bh)pairs)};
}
#else
constexpr bool kPairProducts = false;
#endif

}  // namespace CHUNKBENCH_NAMESPACE
}  // namespace chunkbench
