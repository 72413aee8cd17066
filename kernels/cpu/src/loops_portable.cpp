#include "vec_portable.h"
#define CHUNKBENCH_NAMESPACE portable
#include "attention_loops.h"

namespace chunkbench {
Loops loops_portable() { return portable::loops(); }
}  // namespace chunkbench
