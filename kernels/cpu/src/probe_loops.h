// The innermost loops of the probes, one per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu_features.h"

namespace chunkbench {

// Sum of count floats. The order of addition differs between instruction sets.
float sum(Isa isa, const float* data, std::size_t count);

// Runs `iterations` turns of a loop that only multiplies and adds in registers; returns a value that depends on all of
// them, so that nothing can be left out.
using MatrixLoop = float (*)(std::int64_t iterations);

struct MatrixProbe {
    MatrixLoop loop;
    double flops_per_iteration;
};

// bfloat16_dot: multiply pairs of bfloat16 and accumulate in float32 where the instruction set has that; otherwise, and
// for every other type, the float32 loop: such CPUs convert and multiply in float32.
MatrixProbe matrix_probe(Isa isa, bool bfloat16_dot);

}  // namespace chunkbench
