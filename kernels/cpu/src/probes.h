// Probes of the machine's peaks: read bandwidth and matrix rate.
#pragma once

#include <cstddef>

#include "attention.h"

namespace chunkbench {

struct ReadPass {
    double seconds;  // from the first thread's start to the last thread's end
    double sum;
};

// One pass over the buffer. Each thread reads one contiguous part.
ReadPass read_pass(const float* data, std::size_t count, int threads, Isa isa);

// Floating-point operations per second of multiply-add loops in registers, all threads together, measured for about
// `milliseconds`.
double matrix_flops_per_s(Dtype dtype, int threads, double milliseconds, Isa isa);

}  // namespace chunkbench
