// Decode attention over chunks of packed K and V: the work descriptors of the planner, and the entry point.
//
// Packed layout of one chunk and one KV head, for `c` tokens and head dimension `d` (both multiples of 16):
//   float32, float16:  K [c/16][d][16]     V [d/16][c][16]
//   bfloat16:          K [c/16][d/2][16][2]  V [d/16][c/2][16][2]
// The innermost sixteen numbers (sixteen tokens of K, sixteen dimensions of V) are contiguous for every value of the
// index that a product sums over. So one value of the query (or one probability) times sixteen numbers is one vector
// operation, without transposition and without horizontal sum, and the same loop computes Q K^T and P V. In bfloat16
// two values of the summed index are adjacent, too, because the CPU's bfloat16 dot product takes such pairs.
//
// A block of sixteen tokens of K that is not full yet is stored as [16][d], at the address where [d][16] will be. It is
// transposed when its last token arrives. So an append writes whole cache lines instead of four bytes in each of d
// lines.
#pragma once

#include <atomic>
#include <cstdint>

#include "cpu_features.h"

namespace chunkbench {

constexpr int kMaxHeadDim = 256;

enum class Dtype { float32, float16, bfloat16 };

struct Shape {
    Dtype dtype;
    int heads, kv_heads, head_dim, chunk_size;
};

// A run of chunks, all covered by the same rows. An item either writes partial results, or it is the last item of its
// rows: then it folds in the partial results of the other items and writes the output.
struct Item {
    std::int64_t first_chunk;  // into Work::chunk_keys and chunk_values
    std::int64_t chunks;
    std::int64_t tail_row;   // row whose Work::last_tokens is the length of the last chunk, -1: all chunks are full
    std::int64_t first_row;  // into Work::rows
    std::int64_t rows;
    std::int64_t first_partial;  // index of its rows' partial results; -1: it writes the output
    std::int64_t first_fold;     // into Work::folds: partial results of its only row, which it folds in
    std::int64_t folds;
};

// Everything that one decode reads. The caller owns all memory.
struct Work {
    const Item* items;  // items that write partial results come first
    std::int64_t partial_items;
    std::int64_t item_count;
    const std::int64_t* chunk_keys;    // addresses of the packed K of each chunk, all KV heads in order
    const std::int64_t* chunk_values;  // the same for V
    std::int64_t shift;                // bytes from these addresses to the chunks of this layer
    const std::int64_t* rows;          // rows of q and out
    const std::int64_t* last_tokens;   // [b] tokens in the last chunk of each row's sequence
    const std::int64_t* folds;         // numbers of partial results
    float* partial_outputs;            // [partials][heads][d], weighted sums of V
    float* partial_stats;              // [partials][heads][2], largest score and sum of weights
    float* scratch;                    // threads * scratch_floats()
    const void* q;                     // [b][heads][d]
    void* out;
    float scale;
};

// Number of scratch floats that one thread needs for items of at most `rows` rows.
std::int64_t scratch_floats(const Shape& shape, std::int64_t rows);

// Number of items that have written their partial results of one KV head.
using Counter = std::atomic<std::int64_t>;

// left_by: one counter per KV head, which this call uses.
void decode(const Shape& shape, const Work& work, std::int64_t max_rows, int threads, Isa isa, Counter* left_by);

// Pack token i (k[i] and v[i], each `[kv_heads][d]`) into slot slots[i] of the chunk at keys[i] and values[i].
// The tokens of a chunk must come in the order of their slots.
void pack(const Shape& shape, const void* k, const void* v, const std::int64_t* keys, const std::int64_t* values,
          const std::int64_t* slots, std::int64_t tokens, int threads);

// Keep the first `tokens` of the `held` tokens in a chunk; the other slots become free.
void cut(const Shape& shape, void* key, void* value, int tokens, int held);

// The loops of one instruction set.
struct Loops {
    // `next` is the item after this one, or nullptr.
    void (*item)(const Shape&, const Work&, const Item&, const Item* next, int kv_head, float* scratch);
};
Loops loops_portable();
#ifdef CHUNKBENCH_HAVE_X86
Loops loops_avx2();
Loops loops_avx512();
#endif
#ifdef CHUNKBENCH_HAVE_AVX512_BF16
Loops loops_avx512_bf16();
#endif

}  // namespace chunkbench
