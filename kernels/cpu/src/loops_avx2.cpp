// Compiled with -mavx2 -mfma -mf16c: only CPUs with these features may run this code.
#include "vec_avx2.h"
#define CHUNKBENCH_NAMESPACE avx2
#include "attention_loops.h"

namespace chunkbench {
Loops loops_avx2() { return avx2::loops(); }
}  // namespace chunkbench
