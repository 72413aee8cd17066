// Compiled with -mavx512f -mavx512bf16: only CPUs that have them may enter.
#define CHUNKBENCH_NAMESPACE avx512_bf16
#define CHUNKBENCH_PAIR_PRODUCTS
#include "vec_avx512.h"

// Not sorted: the loops need the vectors above them.
#include "attention_loops.h"

namespace chunkbench {
Loops loops_avx512_bf16() { return {avx512_bf16::item}; }
}  // namespace chunkbench
