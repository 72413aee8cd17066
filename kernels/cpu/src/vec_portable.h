// Sixteen floats without intrinsics; the compiler uses the target's vector instructions (NEON on Arm). See vec_avx2.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace chunkbench {
namespace portable {

struct V16 {
    float x[16];
};

constexpr int kRegisters = 4;
constexpr int kRows = 4;
constexpr int kPairRows = 4;
constexpr int kBlocks = 1;
constexpr int kStreamRows = 1;
constexpr int kStreams = 2;
constexpr int kKeyParts = 2, kValueParts = 8;  // parts of K and V that few rows read side by side
constexpr int kFetchedValueParts = 1;          // parts of V, if the kernel also prefetches
constexpr bool kPairProducts = false;

template <class F>
inline V16 each(F f) {
    V16 r;
    for (int i = 0; i < 16; ++i) r.x[i] = f(i);
    return r;
}

inline std::uint32_t bits_of(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}
inline float of_bits(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline V16 set1(float v) {
    return each([&](int) { return v; });
}
inline V16 load(const float* p) {
    V16 r;
    std::memcpy(r.x, p, sizeof r.x);
    return r;
}
inline void store(float* p, V16 v) { std::memcpy(p, v.x, sizeof v.x); }
inline V16 add(V16 a, V16 b) {
    return each([&](int i) { return a.x[i] + b.x[i]; });
}
inline V16 subtract(V16 a, V16 b) {
    return each([&](int i) { return a.x[i] - b.x[i]; });
}
inline V16 mul(V16 a, V16 b) {
    return each([&](int i) { return a.x[i] * b.x[i]; });
}
inline V16 divide(V16 a, V16 b) {
    return each([&](int i) { return a.x[i] / b.x[i]; });
}
inline V16 fma(V16 a, V16 b, V16 c) {
    return each([&](int i) { return a.x[i] * b.x[i] + c.x[i]; });
}
inline V16 max(V16 a, V16 b) {
    return each([&](int i) { return a.x[i] > b.x[i] ? a.x[i] : b.x[i]; });
}
inline float sum(V16 v) {
    float total = 0.0f;
    for (int i = 0; i < 16; ++i) total += v.x[i];
    return total;
}
inline float top(V16 v) {
    float largest = v.x[0];
    for (int i = 1; i < 16; ++i) largest = v.x[i] > largest ? v.x[i] : largest;
    return largest;
}
constexpr float kLeastPower = -127.0f;
inline V16 scale_by_power(V16 v, V16 n) {
    return each([&](int i) {
        if (n.x[i] == kLeastPower) return 0.0f;
        // A NaN has no nearest integer; with exponent 0 added it stays NaN.
        const bool is_nan = n.x[i] != n.x[i];
        return of_bits(bits_of(v.x[i]) +
                       (is_nan ? 0u : static_cast<std::uint32_t>(static_cast<std::int32_t>(n.x[i])) << 23));
    });
}
inline V16 round(V16 v) {
    return each([&](int i) { return std::nearbyint(v.x[i]); });
}

inline float first(V16 v) { return v.x[0]; }
inline V16 first_lane(float value) {
    return each([&](int i) { return i == 0 ? value : 0.0f; });
}
inline V16 with_lane(V16 v, int lane, float value) {
    v.x[lane] = value;
    return v;
}

inline float half_to_float(std::uint16_t half) {
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
    const std::uint32_t exponent = (half >> 10) & 31u, fraction = half & 1023u;
    if (exponent == 0) {  // zero or denormal: fraction * 2^-24 is a normal float
        const float magnitude = static_cast<float>(fraction) * 5.9604644775390625e-8f;
        return sign ? -magnitude : magnitude;
    }
    return of_bits(sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13);
}
inline std::uint16_t float_to_half(float value) {
    std::uint32_t bits = bits_of(value);
    const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return sign | 0x7e00u;
    if (bits >= 0x477ff000u) return sign | 0x7c00u;  // is or rounds to infinity
    if (bits < 0x38800000u) {                        // below the normal numbers: round value * 2^24 to an integer
        return sign | static_cast<std::uint16_t>(std::nearbyint(of_bits(bits) * 16777216.0f));
    }
    bits += 0xc8000fffu + ((bits >> 13) & 1u);  // change the exponent bias from 127 to 15, round half to even
    return sign | static_cast<std::uint16_t>(bits >> 13);
}
inline V16 load_half(const std::uint16_t* p) {
    return each([&](int i) { return half_to_float(p[i]); });
}
inline void store_half(std::uint16_t* p, V16 v) {
    for (int i = 0; i < 16; ++i) p[i] = float_to_half(v.x[i]);
}

inline float bfloat16_to_float(std::uint16_t half) { return of_bits(static_cast<std::uint32_t>(half) << 16); }
inline std::uint16_t float_to_bfloat16(float value) {
    const std::uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
    return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline V16 load_bfloat16(const std::uint16_t* p) {
    return each([&](int i) { return bfloat16_to_float(p[i]); });
}
inline void store_bfloat16(std::uint16_t* p, V16 v) {
    for (int i = 0; i < 16; ++i) p[i] = float_to_bfloat16(v.x[i]);
}

inline V16 load_int8(const std::int8_t* p) {
    return each([&](int i) { return static_cast<float>(p[i]); });
}
inline V16 load_uint8(const std::uint8_t* p) {
    return each([&](int i) { return static_cast<float>(p[i]); });
}

// A number E4M3 as float16, times 2^-8: its bits have the same order, and denormals stay exact.
inline V16 load_fp8(const std::uint8_t* p) {
    return each([&](int i) {
        const unsigned sign = (p[i] & 0x80u) << 8, magnitude = p[i] & 0x7fu;
        return half_to_float(static_cast<std::uint16_t>(sign | (magnitude == 0x7fu ? 0x7e00u : magnitude << 7)));
    });
}

inline void load_pairs(const std::uint16_t* p, V16& first, V16& second) {
    first = each([&](int i) { return bfloat16_to_float(p[2 * i]); });
    second = each([&](int i) { return bfloat16_to_float(p[2 * i + 1]); });
}

}  // namespace portable
}  // namespace chunkbench
