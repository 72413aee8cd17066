#include "attention.h"

#include <atomic>
#include <thread>

#include "parallel.h"

namespace chunkbench {

Loops loops_of(Isa isa, Dtype dtype, Kv kv) {
    const bool adds_bfloat16 = isa == Isa::avx512_bf16 || isa == Isa::amx_bf16;
    const bool same = kv == Kv::same || kv == Kv::latent;
    switch (adds_bfloat16 && (dtype != Dtype::bfloat16 || !same) ? Isa::avx512 : isa) {
#ifdef CHUNKBENCH_HAVE_X86
        case Isa::avx2: return loops_avx2();
        case Isa::avx512: return loops_avx512();
#endif
#ifdef CHUNKBENCH_HAVE_AVX512_BF16
        case Isa::avx512_bf16: return loops_avx512_bf16();
#endif
#ifdef CHUNKBENCH_HAVE_AMX_BF16
        case Isa::amx_bf16: return loops_amx_bf16();
#endif
        default: return loops_portable();
    }
}

namespace {

// Tell the CPU that this thread only waits.
inline void pause() {
#ifdef CHUNKBENCH_HAVE_X86
    __builtin_ia32_pause();
#endif
}

// Another thread is at work on what this thread waits for, and needs some microseconds. A thread that gives up its CPU
// may get it back a tick of the scheduler later, that is, milliseconds; so it gives it up only if it has waited for
// long: then there are more threads than CPUs.
template <class Condition>
void wait_until(const Condition& holds) {
    constexpr int kPauses = 4000;
    for (int n = 0; n < kPauses && !holds(); ++n) pause();
    while (!holds()) std::this_thread::yield();
}

}  // namespace

std::int64_t scratch_floats(const Shape& shape, std::int64_t states, std::int64_t queries) {
    const std::int64_t values = shape.kv == Kv::latent ? std::int64_t{shape.chunk_size} * shape.value_dim : 0;
    const std::int64_t floats =
        states * (shape.head_dim + shape.value_dim + 16 + 2) + queries * shape.chunk_size + values;
    return (floats + 31) / 32 * 32;  // full cache lines, so that threads do not share a line
}

void decode(const Shape& shape, const Work& work, std::int64_t scratch, int threads, Isa isa, Counter* left_by,
            Call call) {
    const Loops loops = loops_of(isa, shape.dtype, shape.kv);
    const ItemLoop loop = call == Call::read ? loops.read : loops.item;
    for (int head = 0; head < shape.kv_heads; ++head) left_by[head].store(0, std::memory_order_relaxed);
    alignas(64) std::int64_t taken = 0;  // not a std::atomic: the loops read it, and may call no inline functions
    const auto take = [&] { return __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED); };
    const auto run = [&](const Unit& unit, float* space, UnitTrace* trace) {
        const bool leaves = unit.first_item < work.partial_items;
        const int end = unit.heads.first + unit.heads.count;
        for (int head = unit.heads.first; !leaves && head < end; ++head) {
            wait_until([&] { return left_by[head].load(std::memory_order_acquire) >= work.partial_items; });
        }
        if (trace != nullptr) trace->ready = ticks();
        std::int64_t* const parts = trace != nullptr ? trace->parts : nullptr;
        for (std::int64_t n = 0; n < unit.items; ++n) {
            const Item* item = work.items + unit.first_item + n;
            loop(shape, work, *item, unit.heads, {n + 1 < unit.items ? item + 1 : nullptr, &taken}, space, parts);
        }
        for (int head = unit.heads.first; leaves && head < end; ++head) {
            left_by[head].fetch_add(1, std::memory_order_release);
        }
    };
    parallel(threads, [&](int thread) {
        for (std::int64_t i = take(); i < work.unit_count; i = take()) {
            UnitTrace* const trace = work.traces != nullptr ? work.traces + i : nullptr;
            if (trace != nullptr) *trace = {thread, ticks(), 0, 0, {}};
            run(work.units[i], work.scratch + thread * scratch, trace);
            if (trace != nullptr) trace->end = ticks();
        }
    });
}

}  // namespace chunkbench
