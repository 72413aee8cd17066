// Products of rows with the weights of a linear layer: y = x W^T + bias.
//
// Weights are packed as K of attention.h, with outputs in the place of tokens: float32, float16 [out/16][in][16],
// bfloat16 [out/16][in/2][16][2]. `in` is a multiple of 16; outputs are filled up with zeros to a multiple of 16.
#pragma once

#include <cstdint>

#include "attention.h"

namespace chunkbench {

constexpr int kLinearBlocks = 4;  // blocks of sixteen outputs that a thread computes together
constexpr int kLinearRows = 48;   // rows of x that it computes together
// With fewer rows, work other than products takes less time than a second thread needs to start.
constexpr int kFewRows = 16;

// How the sums are written. W[o] is the sum of output o with its bias.
enum class Finish {
    store,    // y[o] = W[o]
    store32,  // the same, y in float32
    add32,    // y[o] += W[o], y in float32
    gate,     // y[o] = silu(gate[o]) * up[o]: blocks of gate and up alternate
};

struct Linear {
    Dtype dtype;  // of x, weights and y
    std::int64_t in, blocks;
    const void* weights;
    const float* bias;  // [16 * blocks], or nullptr
    Finish finish;
};

// y [rows][16 * blocks], half as wide for `gate`.
struct LinearWork {
    Linear layer;
    const void* x;  // [rows][in]
    std::int64_t rows;
    void* y;
    std::int64_t ahead = kLinearBlocks;  // blocks from one unit of a thread to the one that it probably takes next
};

void linear(const LinearWork& work, int threads, Isa isa);

// The part of a decoder layer that is not attention, for models of the Llama family: RMS norm, linear layers, rotary
// positions, a gated MLP. Weights of norms are float32. The hidden states stay in float32 between layers.
struct DecoderLayer {
    Linear qkv, out, gate_up, down;  // they finish with store, add32, gate, add32
    const float *first_norm, *second_norm;
    float epsilon;
    int heads, kv_heads, d;
};

// The buffers of a step: `hidden` is float32, the others have the dtype.
struct StepBuffers {
    std::int64_t rows;
    float* hidden;                 // [rows][in]
    void* normed;                  // [rows][in]
    void* qkv;                     // [rows][heads + 2 kv_heads][d]
    void *q, *k, *v;               // [rows][heads][d], [rows][kv_heads][d] twice
    void* attended;                // [rows][heads][d]
    void* gated;                   // [rows][in of down]
    const float *cosines, *sines;  // [rows][d/2]
};

// Computes q, k and v from hidden. q and k are rotated by the angles of their rows.
void before_attention(const DecoderLayer& layer, const StepBuffers& step, int threads, Isa isa);

// hidden += out(attended), hidden += down(gate_up(norm(hidden))).
void after_attention(const DecoderLayer& layer, const StepBuffers& step, int threads, Isa isa);

// to = from / sqrt(mean of squares + epsilon) * weight for each row of `size` numbers; `to` is of the dtype.
void rms_norm(Dtype dtype, const float* from, std::int64_t rows, std::int64_t size, const float* weight, float epsilon,
              void* to, int threads, Isa isa);

}  // namespace chunkbench
