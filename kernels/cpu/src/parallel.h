// Runs work on several threads.
#pragma once

#include <functional>

namespace chunkbench {

// Calls body(t) for t = 0 .. threads - 1 in parallel, and returns when all calls have returned. If the process has
// loaded an OpenMP runtime, uses its threads, as PyTorch does. A second pool would compete for the cores, because an
// OpenMP thread spins for a while after its work.
void parallel(int threads, const std::function<void(int)>& body);

// Whether `parallel` uses the process's OpenMP runtime.
bool shares_openmp();

}  // namespace chunkbench
