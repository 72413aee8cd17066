#include "linear.h"

#include <cstring>
#include <vector>

#include "parallel.h"

namespace chunkbench {
namespace {

std::int64_t bytes_of(Dtype dtype) { return dtype == Dtype::float32 ? 4 : 2; }

// Blocks of sixteen outputs of a unit. With many rows, units are smaller if the busiest thread then has less to do. A
// few rows are limited by memory, and read four blocks side by side.
int blocks_of_unit(std::int64_t blocks, std::int64_t rows, int threads) {
    const auto of_busiest = [&](int size) {
        const std::int64_t units = (blocks + size - 1) / size;
        return (units + threads - 1) / threads * size;
    };
    return rows >= kFewRows && of_busiest(kLinearBlocks / 2) < of_busiest(kLinearBlocks) ? kLinearBlocks / 2
                                                                                         : kLinearBlocks;
}

}  // namespace

void linear(const LinearWork& asked, int threads, Isa isa) {
    LinearWork work = asked;
    const std::int64_t blocks = work.layer.blocks;
    const int size = blocks_of_unit(blocks, work.rows, threads);
    const std::int64_t units = (blocks + size - 1) / size;
    work.ahead = static_cast<std::int64_t>(size) * threads;  // threads take units in turns
    const Loops loops = loops_of(isa, work.layer.dtype);
    share_out(units, threads, [&](std::int64_t unit, int) {
        static thread_local std::vector<float> scratch;
        const auto floats = static_cast<std::size_t>(kLinearRows * (16 * kLinearBlocks + work.layer.in));
        if (scratch.size() < floats) scratch.resize(floats);
        const std::int64_t first = unit * size, left = blocks - first;
        loops.linear(work, first, static_cast<int>(left < size ? left : size), scratch.data());
    });
}

void rms_norm(Dtype dtype, const float* from, std::int64_t rows, std::int64_t size, const float* weight, float epsilon,
              void* to, int threads, Isa isa) {
    const Loops loops = loops_of(isa, dtype);
    share_out(rows, rows < kFewRows ? 1 : threads, [&](std::int64_t row, int) {
        char* const at = static_cast<char*>(to) + row * size * bytes_of(dtype);
        loops.norm(dtype, from + row * size, size, weight, epsilon, at);
    });
}

void before_attention(const DecoderLayer& layer, const StepBuffers& step, int threads, Isa isa) {
    const Dtype dtype = layer.qkv.dtype;
    const Loops loops = loops_of(isa, dtype);
    rms_norm(dtype, step.hidden, step.rows, layer.qkv.in, layer.first_norm, layer.epsilon, step.normed, threads, isa);
    linear({layer.qkv, step.normed, step.rows, step.qkv}, threads, isa);
    const std::int64_t head = layer.d * bytes_of(dtype), q = layer.heads * head, kv = layer.kv_heads * head;
    share_out(step.rows, step.rows < kFewRows ? 1 : threads, [&](std::int64_t row, int) {
        const char* const from = static_cast<const char*>(step.qkv) + row * (q + 2 * kv);
        const float *cosines = step.cosines + row * (layer.d / 2), *sines = step.sines + row * (layer.d / 2);
        loops.rotate(dtype, from, layer.heads, layer.d, cosines, sines, static_cast<char*>(step.q) + row * q);
        loops.rotate(dtype, from + q, layer.kv_heads, layer.d, cosines, sines, static_cast<char*>(step.k) + row * kv);
        std::memcpy(static_cast<char*>(step.v) + row * kv, from + q + kv, static_cast<std::size_t>(kv));
    });
}

void after_attention(const DecoderLayer& layer, const StepBuffers& step, int threads, Isa isa) {
    linear({layer.out, step.attended, step.rows, step.hidden}, threads, isa);
    rms_norm(layer.out.dtype, step.hidden, step.rows, layer.gate_up.in, layer.second_norm, layer.epsilon, step.normed,
             threads, isa);
    linear({layer.gate_up, step.normed, step.rows, step.gated}, threads, isa);
    linear({layer.down, step.gated, step.rows, step.hidden}, threads, isa);
}

}  // namespace chunkbench
