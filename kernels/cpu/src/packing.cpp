#include "packing.h"

#include <algorithm>
#include <cstring>
#include <utility>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "parallel.h"
#include "transpose.h"

namespace chunkbench {
namespace {

constexpr float kInfinite = __builtin_inff();
constexpr std::int64_t kStreamBytes = 4 << 20;  // of K and V in a call: less stays in the caches until it is read

// A block of sixteen tokens of K, [16][d], to [d/step][16][step], or back.
template <class T>
void transpose_block(const T* from, T* to, std::int64_t d, int step, bool back) {
    const auto transpose_as = [&](auto unit) {
        const auto* source = reinterpret_cast<const decltype(unit)*>(from);
        auto* target = reinterpret_cast<decltype(unit)*>(to);
        if (back) return transpose(source, d / step, 16, target, d / step);
        transpose(source, 16, d / step, target, 16);
    };
    if (sizeof(T) * step == 4) return transpose_as(std::uint32_t());
    if (sizeof(T) == 1) return transpose_as(std::uint8_t());
    transpose_as(std::uint16_t());
}

// Whole lines of a token, written past the caches. A step of hundreds of sequences writes more than the caches hold, a
// row here and a row there. Without this the memory would first read each line that is then written over.
inline void stream_lane(void* to, const void* from) {
#ifdef __SSE2__
    _mm_stream_si128(static_cast<__m128i*>(to), _mm_loadu_si128(static_cast<const __m128i*>(from)));
#else
    std::memcpy(to, from, 16);
#endif
}

inline void put_row(void* to, const void* from, std::int64_t bytes, bool stream) {
    if (!stream) {
        std::memcpy(to, from, static_cast<std::size_t>(bytes));
        return;
    }
    for (std::int64_t i = 0; i < bytes; i += 16) {
        stream_lane(static_cast<char*>(to) + i, static_cast<const char*>(from) + i);
    }
}

// Others may read what was streamed.
inline void end_streams() {
#ifdef __SSE2__
    _mm_sfence();
#endif
}

// V of one token and head as the first or the second number of each pair of a row of pairs. The first one gets zeros as
// its partners: until they come, they are multiplied with weights of zero, and a NaN there would survive.
//
// All in registers: a buffer that is written word by word and read as a vector is read only when every store before it
// has reached the cache, that is, memory; so appending took a quarter more time.
inline void put_in_pairs(const std::uint16_t* from, std::uint16_t* pairs, std::int64_t count, bool second,
                         bool stream) {
    constexpr std::make_index_sequence<8> numbers;
    const Lane<std::uint16_t> none{};
    const Lane<std::uint32_t> lower = Lane<std::uint32_t>{} + 0xffffu;
    for (std::int64_t i = 0; i < count; i += 8) {
        Lane<std::uint16_t> values;
        std::memcpy(&values, from + i, sizeof(values));
        Lane<std::uint16_t> halves[2];  // of the eight pairs
        if (second) {
            halves[0] = interleave<std::uint16_t, false>(none, values, numbers);
            halves[1] = interleave<std::uint16_t, true>(none, values, numbers);
            for (int n = 0; n < 2; ++n) {
                Lane<std::uint32_t> before;
                std::memcpy(&before, pairs + 2 * i + 8 * n, sizeof(before));
                before = (before & lower) | reinterpret_cast<Lane<std::uint32_t>>(halves[n]);
                std::memcpy(pairs + 2 * i + 8 * n, &before, sizeof(before));
            }
        } else {
            halves[0] = interleave<std::uint16_t, false>(values, none, numbers);
            halves[1] = interleave<std::uint16_t, true>(values, none, numbers);
            put_row(pairs + 2 * i, halves, sizeof(halves), stream);
        }
    }
}

// Calls body(first dimension, dimensions, place) for every band of V of a token: `place` counts from a head's V in a
// chunk, in bfloat16 to the token's pairs.
template <class Body>
void for_bands(const Shape& shape, std::int64_t token, int step, const Body& body) {
    for (std::int64_t i = 0; i < shape.value_dim; i += kBand) {
        const std::int64_t band = std::min<std::int64_t>(kBand, shape.value_dim - i);
        body(i, band, i * shape.chunk_size + token / step * step * band);
    }
}

// Ask for lines that are written soon.
inline void fetch_to_write(const void* from, std::int64_t bytes) {
    for (std::int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(from) + at, 1);
}

// Pack `count` tokens of one head into the slots from `slot` on, all in one block of sixteen. In k tokens are `width`
// apart, in v `value_width`. `ahead`: bytes to the head whose memory is asked for now, 0 for none. `stream`: write past
// the caches where whole lines are written; for one token that does not fill its block.
template <class T>
void pack_head(const Shape& shape, const T* k, const T* v, std::int64_t width, std::int64_t value_width, T* chunk,
               std::int64_t slot, std::int64_t count, int step, std::int64_t ahead, bool stream = false) {
    const std::int64_t size = static_cast<std::int64_t>(shape.chunk_size) * shape.head_dim, d = shape.head_dim;
    const bool has_values = shape.kv != Kv::latent;
    T rows[16 * kMaxHeadDim];  // a copy: tokens of k lie at distances that map to one cache set
    T *block = chunk + slot / 16 * 16 * d, *values = chunk + size;
    const bool full = slot % 16 + count == 16;
    const bool reads = step == 2 && slot % 2 == 1;  // the token before it lies in the same lines of V
    stream = stream && count == 1 && !full;
    if (ahead > 0 && !(stream && !reads)) {
        const std::int64_t begin = full ? 0 : slot % 16;
        const auto* const from = reinterpret_cast<const char*>(block + begin * d);
        if (!stream) fetch_to_write(from + ahead, (slot % 16 + count - begin) * d * sizeof(T));
        const auto fetch_values = [&](std::int64_t, std::int64_t band, std::int64_t place) {
            const auto* const at = reinterpret_cast<const char*>(values + place);
            fetch_to_write(at + ahead, count * band * sizeof(T) * (count == 1 ? step : 1));
        };
        if (has_values) for_bands(shape, slot, step, fetch_values);
    }
    T* to = full ? rows : block;
    if (full) std::memcpy(rows, block, slot % 16 * d * sizeof(T));
    for (std::int64_t t = 0; t < count; ++t) put_row(to + (slot % 16 + t) * d, k + t * width, d * sizeof(T), stream);
    if (full) transpose_block(rows, block, d, step, false);
    for (std::int64_t t = 0; has_values && t < count; ++t) {
        for_bands(shape, slot + t, step, [&](std::int64_t i, std::int64_t band, std::int64_t place) {
            const T* from = v + t * value_width + i;
            T* target = values + place;
            if (step == 1) {
                put_row(target, from, band * sizeof(T), stream);
            } else {
                put_in_pairs(reinterpret_cast<const std::uint16_t*>(from), reinterpret_cast<std::uint16_t*>(target),
                             band, (slot + t) % 2 == 1, stream);
            }
        });
    }
}

constexpr std::int64_t kHeadsAhead = 4;

std::int64_t bytes_ahead(const Shape& shape, std::int64_t head) {
    return head + kHeadsAhead < shape.kv_heads ? kHeadsAhead * shape.head_bytes : 0;
}

template <class T>
void pack_block(const Shape& shape, const T* k, const T* v, char* chunk, std::int64_t slot, std::int64_t count,
                int step, bool stream) {
    const std::int64_t d = shape.head_dim, d_v = shape.value_dim, heads = shape.kv_heads;
    for (std::int64_t head = 0; head < heads; ++head, chunk += shape.head_bytes) {
        pack_head(shape, k + head * d, v + head * d_v, heads * d, heads * d_v, reinterpret_cast<T*>(chunk), slot, count,
                  step, bytes_ahead(shape, head), stream);
    }
}

float float_of(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

std::uint32_t bits_of(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
}

// The numbers of a token and head as floats.
void widen(Dtype dtype, const void* from, std::int64_t d, float* to) {
    const auto* halves = static_cast<const std::uint16_t*>(from);
    if (dtype == Dtype::float32) {
        std::memcpy(to, from, d * sizeof(float));
    } else if (dtype == Dtype::bfloat16) {
        for (std::int64_t i = 0; i < d; ++i) to[i] = float_of(static_cast<std::uint32_t>(halves[i]) << 16);
    } else {
        for (std::int64_t i = 0; i < d; ++i) {  // 2^112 changes the bias of the exponent, also for denormals
            const std::uint32_t half = halves[i], magnitude = half & 0x7fffu;
            const float value = float_of(magnitude << 13) * 0x1p112f;
            const std::uint32_t bits = magnitude >= 0x7c00u ? 0x7f800000u | magnitude << 13 : bits_of(value);
            to[i] = float_of((half & 0x8000u) << 16 | bits);
        }
    }
}

// The nearest integer, ties to even, of |x| < 2^22: adding 1.5 * 2^23 rounds away the fraction.
inline int nearest(float x) {
    constexpr float kShift = 12582912.0f;
    return static_cast<int>(x + kShift - kShift);
}

// The bits of a number as an integer that has the same order, and back.
inline std::int32_t ordered(float x) {
    const auto bits = static_cast<std::int32_t>(bits_of(x));
    return bits ^ (bits >> 31 & 0x7fffffff);
}
inline float from_ordered(std::int32_t x) { return float_of(static_cast<std::uint32_t>(x ^ (x >> 31 & 0x7fffffff))); }

// Numbers of a token and head in 8 bits, see Kv. A NaN or an infinity among them makes the scale NaN or infinite. The
// loops take maxima of bits, because a compiler makes vectors of these and not of maxima of floats.
float to_int8(const float* x, std::int64_t d, std::uint8_t* to) {
    std::int32_t most = 0;
    for (std::int64_t i = 0; i < d; ++i) {
        const auto magnitude = static_cast<std::int32_t>(bits_of(x[i]) & 0x7fffffffu);
        most = magnitude > most ? magnitude : most;
    }
    const float peak = float_of(static_cast<std::uint32_t>(most));
    if (!(peak > 0.0f && peak < kInfinite)) {
        std::memset(to, 0, static_cast<std::size_t>(d));
        return peak;
    }
    const float lift = peak < 1e-30f ? 0x1p100f : 1.0f;  // 127 / peak must be finite
    const float inverse = 127.0f / (peak * lift);
    for (std::int64_t i = 0; i < d; ++i) to[i] = static_cast<std::uint8_t>(nearest(x[i] * lift * inverse));
    return peak / 127.0f;
}

// Returns the scale; the number that stands for zero goes to `zero`.
float to_uint8(const float* x, std::int64_t d, std::uint8_t* to, float* zero) {
    std::int32_t first = ordered(x[0]), last = first;
    for (std::int64_t i = 0; i < d; ++i) {
        const std::int32_t here = ordered(x[i]);
        first = here < first ? here : first;
        last = here > last ? here : last;
    }
    const float least = from_ordered(first), most = from_ordered(last);
    *zero = 0.0f;
    if (!(least > -kInfinite && most < kInfinite)) {
        std::memset(to, 0, static_cast<std::size_t>(d));
        return float_of(0x7fc00000u);
    }
    const float step = most / 255.0f - least / 255.0f;
    const float scale = step > 0.0f ? step : least < 0.0f ? -least : least > 0.0f ? least : 1.0f;
    *zero = -least / scale;
    for (std::int64_t i = 0; i < d; ++i) {
        const float scaled = x[i] / scale + *zero;
        const float high = scaled > 255.0f ? 255.0f : scaled;
        to[i] = static_cast<std::uint8_t>(nearest(high < 0.0f ? 0.0f : high));
    }
    return scale;
}

void to_fp8(const float* x, std::int64_t d, float scale, std::uint8_t* to) {
    constexpr std::uint32_t kMost = 0x7e, kNan = 0x7f;
    for (std::int64_t i = 0; i < d; ++i) {
        const std::uint32_t bits = bits_of(x[i] / scale), magnitude = bits & 0x7fffffffu;
        const float size = float_of(magnitude);
        // Below 2^-6 numbers are multiples of 2^-9, which is the step of floats at 2^14.
        const std::uint32_t small = bits_of(size + 16384.0f) - 0x46800000u;
        const std::uint32_t large = (magnitude + 0x7ffffu + (magnitude >> 20 & 1u) - (120u << 23)) >> 20;
        const std::uint32_t rounded = size < 0x1p-6f ? small : size >= 448.0f ? kMost : large;
        to[i] = static_cast<std::uint8_t>((bits >> 24 & 0x80u) | (size != size ? kNan : rounded));
    }
}

// `pack_block` of numbers in 8 bits. `width`: numbers from a token to the next one in k and v, of `bytes` bytes.
void pack_block_in_8_bits(const Shape& shape, const char* k, const char* v, std::int64_t width, std::int64_t bytes,
                          char* chunk, std::int64_t slot, std::int64_t count, KvScales scales) {
    const std::int64_t d = shape.head_dim, c = shape.chunk_size;
    std::uint8_t rounded[2][16 * kMaxHeadDim];
    float wide[kMaxHeadDim];
    for (std::int64_t head = 0; head < shape.kv_heads; ++head, chunk += shape.head_bytes) {
        auto* const floats = reinterpret_cast<float*>(chunk + 2 * c * d);
        for (int side = 0; side < 2; ++side) {
            const float* const given = side == 0 ? scales.keys : scales.values;
            float* const own = floats + side * c * (shape.kv == Kv::uint8 ? 2 : 1) + slot;
            for (std::int64_t t = 0; t < count; ++t) {
                std::uint8_t* const to = rounded[side] + t * d;
                widen(shape.dtype, (side == 0 ? k : v) + (t * width + head * d) * bytes, d, wide);
                if (shape.kv == Kv::int8) own[t] = to_int8(wide, d, to);
                if (shape.kv == Kv::uint8) own[t] = to_uint8(wide, d, to, own + c + t);
                if (shape.kv == Kv::fp8) to_fp8(wide, d, given ? given[head] : 1.0f, to);
            }
        }
        pack_head(shape, rounded[0], rounded[1], d, d, reinterpret_cast<std::uint8_t*>(chunk), slot, count, 1,
                  bytes_ahead(shape, head));
    }
}

template <class T>
void cut_all(const Shape& shape, char* from, std::int64_t tokens, std::int64_t held, int step) {
    const std::int64_t size = static_cast<std::int64_t>(shape.chunk_size) * shape.head_dim, d = shape.head_dim;
    T rows[16 * kMaxHeadDim];
    for (std::int64_t head = 0; head < shape.kv_heads; ++head, from += shape.head_bytes) {
        auto* const chunk = reinterpret_cast<T*>(from);
        if (tokens % 16 != 0 && held >= tokens / 16 * 16 + 16) {  // the block was full and becomes partial
            T* block = chunk + tokens / 16 * 16 * d;
            transpose_block(block, rows, d, step, true);
            std::memcpy(block, rows, 16 * d * sizeof(T));
        }
        if (step == 2 && tokens % 2 == 1 && shape.kv != Kv::latent) {  // the last token loses its partner
            for_bands(shape, tokens, step, [&](std::int64_t, std::int64_t band, std::int64_t place) {
                for (std::int64_t i = 0; i < band; ++i) chunk[size + place + 2 * i + 1] = 0;
            });
        }
    }
}

// Calls body(first token, slot, tokens, chunk) for tokens that lie side by side in a block of sixteen.
template <class Body>
void for_blocks(const std::int64_t* chunks, const std::int64_t* slots, std::int64_t tokens, int threads,
                const Body& body) {
    const auto continues = [&](std::int64_t i) {
        return chunks[i] == chunks[i - 1] && slots[i] == slots[i - 1] + 1 && slots[i] % 16 != 0;
    };
    // A thread takes several neighbours: threads that take turns, token by token, wait for the same part of the memory.
    const std::int64_t together = std::max<std::int64_t>(1, std::min<std::int64_t>(16, tokens / 8 / threads));
    share_out((tokens + together - 1) / together, threads, [&](std::int64_t part, int) {
        const std::int64_t last = std::min(tokens, (part + 1) * together);
        for (std::int64_t i = part * together; i < last; ++i) {
            if (i > 0 && continues(i)) continue;  // already packed together with the token before it
            std::int64_t end = i + 1;
            while (end < tokens && continues(end)) ++end;
            body(i, slots[i], end - i, reinterpret_cast<char*>(chunks[i]));
        }
        end_streams();
    });
}

}  // namespace

void pack(const Shape& shape, const void* k, const void* v, const std::int64_t* chunks, const std::int64_t* slots,
          std::int64_t tokens, int threads, KvScales scales) {
    const std::int64_t width = static_cast<std::int64_t>(shape.kv_heads) * shape.head_dim;
    const std::int64_t value_width = static_cast<std::int64_t>(shape.kv_heads) * shape.value_dim;
    const std::int64_t element = shape.dtype == Dtype::float32 ? 4 : 2;
    const auto in_lines = [](std::int64_t bytes) { return bytes % 64 == 0; };
    const bool stream = tokens * (width + value_width) * element > kStreamBytes && in_lines(shape.head_dim * element) &&
                        in_lines(shape.value_dim * element) && std::all_of(chunks, chunks + tokens, in_lines);
    for_blocks(chunks, slots, tokens, threads, [&](std::int64_t i, std::int64_t slot, std::int64_t count, char* chunk) {
        const auto pack_as = [&](auto unit, int step) {
            using T = decltype(unit);
            pack_block(shape, static_cast<const T*>(k) + i * width, static_cast<const T*>(v) + i * value_width, chunk,
                       slot, count, step, stream);
        };
        if (shape.in_8_bits()) {
            const std::int64_t first = i * width * element;
            return pack_block_in_8_bits(shape, static_cast<const char*>(k) + first, static_cast<const char*>(v) + first,
                                        width, element, chunk, slot, count, scales);
        }
        if (shape.dtype == Dtype::float32) return pack_as(float(), 1);
        pack_as(std::uint16_t(), shape.dtype == Dtype::bfloat16 ? 2 : 1);
    });
}

void cut(const Shape& shape, void* chunk, int tokens, int held) {
    char* const at = static_cast<char*>(chunk);
    if (shape.in_8_bits()) return cut_all<std::uint8_t>(shape, at, tokens, held, 1);
    if (shape.dtype == Dtype::float32) return cut_all<float>(shape, at, tokens, held, 1);
    cut_all<std::uint16_t>(shape, at, tokens, held, shape.dtype == Dtype::bfloat16 ? 2 : 1);
}

}  // namespace chunkbench
