// The innermost loops of the probes, one per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu_features.h"

namespace chunkbench {

// Sum of count floats. The order of addition differs between instruction sets.
float sum(Isa isa, const float* data, std::size_t count);

// Runs `iterations` iterations of a loop that only multiplies and adds in registers. Returns a value that depends on
// all of them, so that the compiler can remove none.
using MatrixLoop = float (*)(std::int64_t iterations);

struct MatrixProbe {
    MatrixLoop loop;
    double flops_per_iteration;
};

// bfloat16_dot: multiply pairs of bfloat16 and accumulate in float32, if the instruction set can do that. Otherwise,
// and for every other type, the float32 loop, because such CPUs convert to float32 and multiply there.
MatrixProbe matrix_probe(Isa isa, bool bfloat16_dot);

}  // namespace chunkbench
