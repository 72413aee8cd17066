// Compiled with -mavx512f: only CPUs with this feature may run this code.
#define CHUNKBENCH_NAMESPACE avx512
#include "vec_avx512.h"

// After the vector header, which the loops need.
#include "attention_loops.h"

namespace chunkbench {
Loops loops_avx512() { return avx512::loops(); }
}  // namespace chunkbench
