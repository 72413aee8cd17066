// Compiled with -mavx512f: only CPUs that have it may enter.
#define CHUNKBENCH_NAMESPACE avx512
#include "vec_avx512.h"

// Not sorted: the loops need the vectors above them.
#include "attention_loops.h"

namespace chunkbench {
Loops loops_avx512() { return {avx512::item}; }
}  // namespace chunkbench
