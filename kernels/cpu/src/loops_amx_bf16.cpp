// Compiled with -mavx512f -mavx512bf16 -mamx-tile -mamx-bf16: only CPUs with these features may run this code, and only
// after the system has allowed the process to use tiles (cpu_features.cpp).
#define CHUNKBENCH_NAMESPACE amx_bf16
#define CHUNKBENCH_PAIR_PRODUCTS
#define CHUNKBENCH_TILE_PRODUCTS
#include "vec_avx512.h"

// After the vector header, which the loops need.
#include "attention_loops.h"

namespace chunkbench {
Loops loops_amx_bf16() { return amx_bf16::loops(); }
}  // namespace chunkbench
