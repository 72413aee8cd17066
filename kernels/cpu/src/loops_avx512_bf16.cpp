// Compiled with -mavx512f -mavx512bf16: only CPUs with these features may run this code.
#define CHUNKBENCH_NAMESPACE avx512_bf16
#define CHUNKBENCH_PAIR_PRODUCTS
#include "vec_avx512.h"

// After the vector header, which the loops need.
#include "attention_loops.h"

namespace chunkbench {
Loops loops_avx512_bf16() { return avx512_bf16::loops(); }
}  // namespace chunkbench
