// Decode attention over chunks of packed K and V: the work descriptors of the planner, and the entry point.
//
// Packed layout of one chunk: for each KV head its K and then its V, both of c * d numbers, side by side. `c` tokens
// and the head dimension `d` are multiples of 16.
//   float32, float16:  K [c/16][d][16]       V [d/64][c][64]
//   bfloat16:          K [c/16][d/2][16][2]  V [d/64][c/2][64][2]
// The innermost sixteen numbers (sixteen tokens of K, sixteen dimensions of V) are contiguous for every value of the
// index that a product sums over. So one value of the query (or one probability) times sixteen numbers is one vector
// operation, without transposition and without horizontal sum, and the same loop computes Q K^T and P V. In bfloat16
// two values of the summed index are adjacent, too, because the CPU's bfloat16 dot product takes such pairs.
//
// A block of sixteen tokens of K that is not full yet is stored as [16][d], at the address where [d][16] will be. It is
// transposed when its last token arrives. If d is no multiple of 64, the last band of V is narrower: 16, 32 or 48
// dimensions. So a token of a head is on one page of K and on d/64 pages of V, and an append writes whole cache lines.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <ctime>

#include "cpu_features.h"

namespace chunkbench {

constexpr int kMaxHeadDim = 256;
constexpr int kBand = 64;  // dimensions of V side by side

enum class Dtype { float32, float16, bfloat16 };

struct Shape {
    Dtype dtype;
    int heads, kv_heads, head_dim, chunk_size;
};

// A run of chunks, all covered by the same rows. An item either writes partial results, or it is the last item of its
// rows: then it folds in the partial results of the other items and writes the output.
struct Item {
    std::int64_t first_chunk;  // into Work::chunks
    std::int64_t chunk_count;
    std::int64_t first_row;  // into Work::rows
    std::int64_t row_count;
    std::int64_t tail_row;  // row whose Work::last_tokens is the length of the last chunk, -1: all chunks are full.
                            // An item of several rows: the longest of them; each reads up to its own last_tokens
    std::int64_t first_partial;  // index of its rows' partial results; -1: it writes the output
    std::int64_t first_fold;     // into Work::folds: partial results of its only row, which it folds in
    std::int64_t folds;
    std::int64_t heads;  // KV heads that one thread computes together, chunk by chunk
};
constexpr const char* kItemFields[] = {"first_chunk",   "chunk_count", "first_row", "row_count", "tail_row",
                                       "first_partial", "first_fold",  "folds",     "heads"};
static_assert(sizeof(Item) == sizeof(kItemFields) / sizeof(*kItemFields) * sizeof(std::int64_t),
              "all fields have a name");

// KV heads first .. first + count - 1.
struct Heads {
    int first, count;
};

// A piece of work of one thread: some heads of some items, one item after the other.
struct Unit {
    std::int64_t first_item, items;
    Heads heads;
};

// How one row reads.
struct ReadMode {
    bool fetch_early;   // whether it fetches what it reads next by itself, besides the CPU
    bool side_by_side;  // whether it reads several parts of a piece side by side
};

// The compensation token of each row: the means of K and V of the tokens whose chunks the row does not read.
struct Compensation {
    const float* sums;            // [entries][KV heads][2][d] of K and of V; nullptr: no row has such a token
    std::int64_t stride;          // floats from an entry to the next one
    const std::int64_t* entries;  // [b] -1: none
    const float* shares;          // [b] 1 / tokens of the entry
    const float* biases;          // [b] what is added to the scaled score
};

// Results so far of all rows over contexts that earlier calls read (section 3.2 of the paper: O, m, n). A call with
// them starts from them and leaves the new ones, in place of outputs. A row that has seen nothing yet has 0, -inf, 0.
struct Running {
    float* outputs;  // [b][heads][d], weighted sums of V; nullptr: the call writes outputs
    float* stats;    // [b][heads][2], largest score and sum of weights
};

// What the loops of an item spend time on: starting its rows (and folding in partial results), Q K^T, softmax, P V, and
// leaving results.
enum Part { kStart, kScores, kSoftmax, kValues, kLeave, kParts };

// When and where a unit ran, in ticks of the CPU's clock. `ready`: the partial results that it needs were there. Whole
// cache lines: threads write to neighbours at the same time.
struct alignas(64) UnitTrace {
    std::int64_t thread, begin, ready, end;
    std::int64_t parts[kParts];
};

// Ticks of a clock that runs at the same rate on all CPUs. The loops read it in traced calls only.
inline std::int64_t ticks() {
#if defined(__x86_64__)
    return static_cast<std::int64_t>(__builtin_ia32_rdtsc());
#elif defined(__aarch64__)
    std::int64_t now;
    asm volatile("mrs %0, cntvct_el0" : "=r"(now));
    return now;
#else
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::int64_t>(now.tv_sec) * 1000000000 + now.tv_nsec;
#endif
}

// Everything that one decode reads. The caller owns all memory.
struct Work {
    const Item* items;  // items that write partial results come first
    std::int64_t partial_items;
    const Unit* units;
    std::int64_t unit_count;
    const std::int64_t* chunks;       // addresses of the packed chunks
    std::int64_t shift;               // bytes from these addresses to the chunks of this layer
    const std::int64_t* rows;         // rows of q and out
    const std::int64_t* last_tokens;  // [b] tokens that each row reads of its last chunk
    const std::int64_t* folds;        // numbers of partial results
    float* partial_outputs;           // [partials][heads][d], weighted sums of V
    float* partial_stats;             // [partials][heads][2], largest score and sum of weights
    float* scratch;                   // threads * scratch_floats()
    const void* q;                    // [b][heads][d]
    void* out;
    float scale;
    ReadMode mode;
    Compensation compensation;
    Running running;
    UnitTrace* traces;  // [units] nullptr: the call is not traced
};

// Number of scratch floats that one thread needs. `states`: most query rows of an item times KV heads that it computes
// together; `queries`: most query rows.
std::int64_t scratch_floats(const Shape& shape, std::int64_t states, std::int64_t queries);

// Number of items that have written their partial results of one KV head.
using Counter = std::atomic<std::int64_t>;

// What a call does with the chunks. `read`: reads all of them in the same order, as items of one row do, without
// arithmetic, and writes no result.
enum class Call { decode, read };

// Runs all units. left_by: one counter per KV head, which this call uses; scratch: floats of one thread.
void decode(const Shape& shape, const Work& work, std::int64_t scratch, int threads, Isa isa, Counter* left_by,
            Call call);

// What a thread reads after an item: the next item of its unit or, if that is nullptr, probably the first item of the
// first unit that no thread has taken yet. `taken` counts the units that threads have taken.
struct Next {
    const Item* item;
    const std::int64_t* taken;
};

struct LinearWork;

// The loops of one instruction set: those of `decode`, of linear layers (linear.h), and of the probes (probe_loops.h).
// `parts` [kParts]: to which a traced call adds its ticks; else nullptr.
using ItemLoop = void (*)(const Shape&, const Work&, const Item&, Heads, Next, float* scratch, std::int64_t* parts);
struct Loops {
    ItemLoop item, read;
    // All rows of `blocks` blocks from `first` on. scratch: kLinearRows * (16 * kLinearBlocks + in) floats.
    void (*linear)(const LinearWork&, std::int64_t first, int blocks, float* scratch);
    // One row of rms_norm; one row of heads, rotated: pairs (x[i], x[i + d/2]) by angle i.
    void (*norm)(Dtype, const float* from, std::int64_t size, const float* weight, float epsilon, void* to);
    void (*rotate)(Dtype, const void* x, int heads, int d, const float* cosines, const float* sines, void* to);
    float (*sum)(const float* data, std::size_t count);
    float (*multiply_add)(std::int64_t iterations);
    double flops;  // of one iteration of multiply_add
};

// The loops that compute with a dtype. What instruction sets above AVX-512 add is for bfloat16 alone.
Loops loops_of(Isa isa, Dtype dtype);

// Those of each instruction set, as far as this binary has it: loops.cpp.
Loops loops_portable(), loops_avx2(), loops_avx512(), loops_avx512_bf16(), loops_amx_bf16();

}  // namespace chunkbench
