// Decode attention over chunks of packed K and V: the work descriptors of the planner, and the entry point.
//
// Packed layout of one chunk: for each KV head its K and then its V, of c * d numbers each, side by side. `c` tokens
// and the head dimension `d` are multiples of 16. V may have another dimension than K.
//   float32, float16:  K [c/16][d][16]       V [d/64][c][64]
//   bfloat16:          K [c/16][d/2][16][2]  V [d/64][c/2][64][2]
//   8 bits:            K [c/16][d][16]       V [d/64][c][64], then float32 numbers of each token: see Kv
//   latent:            K alone, as above; V is the first dimensions of K
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

constexpr int kMaxHeadDim = 1024;
constexpr int kBand = 64;  // dimensions of V side by side

enum class Dtype { float32, float16, bfloat16 };

// How K and V are stored.
//   same:   in the dtype of queries and outputs
//   int8:   x = s * n, n in -127 .. 127. After V, a head has the scales s of K [c], then those of V [c].
//   uint8:  x = s * (n - z), n in 0 .. 255. After V, a head has s and z of K, then s and z of V, each [c].
//   fp8:    x = s * n, n a number of 8 bits with 4 bits of exponent (E4M3). One s for each KV head: KvScales.
//   latent: as `same`, without V: the first numbers of a token's K are its V (latent attention, DeepSeek-V2).
enum class Kv { same, int8, uint8, fp8, latent };

struct Shape {
    Dtype dtype;
    int heads, kv_heads, head_dim, value_dim, chunk_size;  // dimensions of q and K, and of V and outputs
    Kv kv;
    std::int64_t head_bytes;  // of K and V of one head in a chunk

    bool in_8_bits() const { return kv == Kv::int8 || kv == Kv::uint8 || kv == Kv::fp8; }
};

// Scales of fp8: of K [kv_heads] and of V [kv_heads]. nullptr: 1.
struct KvScales {
    const float *keys, *values;
};

// A run of chunks, all covered by the same rows. An item either writes partial results, or is the last item of its
// rows. A last item folds in the partial results of the other items and writes the output.
struct Item {
    std::int64_t first_chunk;  // into Work::chunks
    std::int64_t chunk_count;
    std::int64_t first_row;  // into Work::rows
    std::int64_t row_count;
    std::int64_t tail_row;  // row whose Work::last_tokens is the length of the last chunk, -1: all chunks are full.
                            // In an item of several rows the longest of them; each row reads up to its own last_tokens.
    std::int64_t before;    // chunks of the sequence before the first one; read only if the call has sights
    std::int64_t first_partial;  // index of the partial results of its rows; -1: the item writes the output
    std::int64_t first_fold;     // into Work::folds: partial results of its only row, which the item folds in
    std::int64_t folds;
    std::int64_t heads;  // KV heads that one thread computes together, chunk by chunk
};
constexpr const char* kItemFields[] = {"first_chunk", "chunk_count",   "first_row",  "row_count", "tail_row",
                                       "before",      "first_partial", "first_fold", "folds",     "heads"};
static_assert(sizeof(Item) == sizeof(kItemFields) / sizeof(*kItemFields) * sizeof(std::int64_t),
              "all fields have a name");

// KV heads first .. first + count - 1.
struct Heads {
    int first, count;
};

// A unit of work of one thread: some heads of some items, one item after the other.
struct Unit {
    std::int64_t first_item, items;
    Heads heads;
};

// How one row reads K and V.
struct ReadMode {
    bool fetch_early;   // whether it prefetches its next data itself, in addition to the CPU
    bool side_by_side;  // whether it reads several parts of a piece at the same time
};

// The compensation token of each row: the means of K and V of the tokens whose chunks the row does not read.
struct Compensation {
    const float* sums;            // [entries][KV heads][2][d] of K and of V; nullptr: no row has such a token
    std::int64_t stride;          // floats from an entry to the next one
    const std::int64_t* entries;  // [b] -1: none
    const float* shares;          // [b] 1 / tokens of the entry
    const float* biases;          // [b] added to the scaled score
};

// Which tokens of its sequence a row reads, if not all of them. The sequence ends last_tokens after `before` chunks.
constexpr int kMostHidden = 256;
struct Sight {
    std::int64_t before;  // chunks before the sequence's last one
    std::int64_t window;  // the row reads at most this many tokens before the end
    std::int64_t reach;   // tokens before the end that `hidden` says something about, at most kMostHidden
    std::uint64_t hidden[kMostHidden / 64];  // bit i: the row does not read the token that i tokens follow
};

// What changes the scores of a call. cap: a scaled score x becomes cap * tanh(x / cap); 0: none. sinks: [heads], a
// scaled score without a V that each row has in addition; nullptr: none.
struct ScoreChanges {
    float cap;
    const float* sinks;
};

// Running results of all rows over the contexts that earlier calls read (section 3.2 of the paper: O, m, n). A call
// with running results starts from them and updates them, and writes no outputs. A row that has read nothing yet has 0,
// -inf, 0.
struct Running {
    float* outputs;  // [b][heads][d of V], weighted sums of V; nullptr: the call writes outputs
    float* stats;    // [b][heads][2], largest score and sum of weights
    bool fresh;      // whether the call ignores what was there: it starts with 0, -inf, 0
};

// The parts of an item's time: start of its rows (with folding in partial results), Q K^T, softmax, P V, and writing of
// results.
enum Part { kStart, kScores, kSoftmax, kValues, kLeave, kParts };

// When and on which thread a unit ran, in ticks of the CPU's clock. `ready`: the time at which the partial results that
// it needs were complete. The struct fills whole cache lines, because threads write to neighbours at the same time.
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
    float* partial_outputs;           // [partials][heads][d of V], weighted sums of V
    float* partial_stats;             // [partials][heads][2], largest score and sum of weights
    float* scratch;                   // threads * scratch_floats()
    const void* q;                    // [b][heads][d]
    void* out;                        // [b][heads][d of V]
    float scale;
    KvScales kv_scales;
    ReadMode mode;
    Compensation compensation;
    const Sight* sights;  // [b] nullptr: all rows read all tokens
    ScoreChanges changes;
    Running running;
    UnitTrace* traces;  // [units] nullptr: the call is not traced
};

// Number of scratch floats that one thread needs. `states`: most query rows of an item times KV heads that it computes
// together; `queries`: most query rows.
std::int64_t scratch_floats(const Shape& shape, std::int64_t states, std::int64_t queries);

// Number of items that have written their partial results of one KV head.
using Counter = std::atomic<std::int64_t>;

// What a call does with the chunks. `read` reads all chunks in the order of `decode`, like items of one row, without
// arithmetic, and writes no result.
enum class Call { decode, read };

// Runs all units. left_by: one counter per KV head, which this call uses; scratch: floats of one thread.
void decode(const Shape& shape, const Work& work, std::int64_t scratch, int threads, Isa isa, Counter* left_by,
            Call call);

// What a thread will read after an item: the next item of its unit or, if that is nullptr, probably the first item of
// the first unit that no thread has taken yet. `taken` counts the units that threads have taken.
struct Next {
    const Item* item;
    const std::int64_t* taken;
};

struct LinearWork;

// The loops of one instruction set: those of `decode`, of linear layers (linear.h), and of the probes (probe_loops.h).
// `parts` [kParts]: a traced call adds its ticks to these counters; nullptr for other calls.
using ItemLoop = void (*)(const Shape&, const Work&, const Item&, Heads, Next, float* scratch, std::int64_t* parts);
struct Loops {
    ItemLoop item, read;
    // All rows of `blocks` blocks from `first` on. scratch: kLinearRows * (16 * kLinearBlocks + in) floats.
    void (*linear)(const LinearWork&, std::int64_t first, int blocks, float* scratch);
    // One row of rms_norm; one row of heads, rotated: pairs (x[i], x[i + d/2]) by angle i.
    void (*norm)(Dtype, const float* from, std::int64_t size, const float* weight, float epsilon, void* to);
    void (*rotate)(Dtype, const void* x, int heads, int d, const float* cosines, const float* sines, void* to);
    // to[i] = factor * from[i], rounded to the dtype; `count` is a multiple of 16.
    void (*scale_row)(Dtype, const float* from, std::int64_t count, float factor, void* to);
    float (*sum)(const float* data, std::size_t count);
    float (*multiply_add)(std::int64_t iterations);
    double flops;  // of one iteration of multiply_add
};

// The loops that compute with a dtype. Instruction sets above AVX-512 add only loops for bfloat16.
// K and V in 8 bits have no products of pairs.
Loops loops_of(Isa isa, Dtype dtype, Kv kv = Kv::same);

// The loops of each instruction set that this binary has: loops.cpp.
Loops loops_portable(), loops_avx2(), loops_avx512(), loops_avx512_bf16(), loops_amx_bf16();

}  // namespace chunkbench
