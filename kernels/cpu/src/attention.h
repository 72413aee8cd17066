// Decode attention over chunks of packed K and V: what the planner hands over, and the entry point.
//
// Packed layout of one chunk and one KV head, for `c` tokens and head dimension `d` (both multiples of 16):
//   float32, float16:  K [c/16][d][16]     V [d/16][c][16]
//   bfloat16:          K [c/16][d/2][16][2]  V [d/16][c/2][16][2]
// In both, sixteen neighbours lie side by side for every value of the index that a product sums over, so that one value
// of the query (or one probability) times sixteen numbers is one vector operation: no transposition, no horizontal sum,
// and the same loop computes Q K^T and P V. With bfloat16 two values of the summed index lie side by side as well,
// which is what the CPU's bfloat16 dot product takes.
//
// A block of sixteen tokens of K that is not full yet lies as [16][d] in the place where [d][16] will lie, and is
// turned when its last token comes: appending a token then writes whole cache lines instead of four bytes in each of d
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

// A run of chunks that the same rows cover. It either leaves partial results or, as the last item of its rows, folds in
// those that others have left and writes the output.
struct Item {
    std::int64_t first_chunk;  // into Work::chunk_keys and chunk_values
    std::int64_t chunks;
    std::int64_t tail_row;   // row whose length the last chunk follows (Work::last_tokens), -1: all chunks are full
    std::int64_t first_row;  // into Work::rows
    std::int64_t rows;
    std::int64_t first_partial;  // where its rows' partial results go; -1: it writes the output
    std::int64_t first_fold;     // into Work::folds: partial results of its one row that it folds in
    std::int64_t folds;
};

// Everything that one decode reads. All pointers stay the caller's.
struct Work {
    const Item* items;  // those that leave partial results first
    std::int64_t partial_items;
    std::int64_t item_count;
    const std::int64_t* chunk_keys;  // addresses of the packed K of each listed chunk, all KV heads one after the other
    const std::int64_t* chunk_values;  // the same of V
    std::int64_t shift;                // bytes from these addresses to where the chunks of this layer are
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

// Floats of scratch that one thread needs for items of at most `rows` rows.
std::int64_t scratch_floats(const Shape& shape, std::int64_t rows);

// How many items have left their partial results of one KV head.
using Counter = std::atomic<std::int64_t>;

// left_by: one counter for each KV head, for this call to use.
void decode(const Shape& shape, const Work& work, std::int64_t max_rows, int threads, Isa isa, Counter* left_by);

// Pack token i, k[i] and v[i] `[kv_heads][d]`, into slot slots[i] of the chunk at keys[i] and values[i].
// Tokens come in the order of their slots.
void pack(const Shape& shape, const void* k, const void* v, const std::int64_t* keys, const std::int64_t* values,
          const std::int64_t* slots, std::int64_t tokens, int threads);

// Forget what a chunk of `held` tokens holds beyond its first `tokens`.
void cut(const Shape& shape, void* key, void* value, int tokens, int held);

// One instruction set's loops.
struct Loops {
    // `next` is the item that comes after this one, if it is known.
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
