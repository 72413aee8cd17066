// Work shared out among threads.
#pragma once

#include <functional>

namespace chunkbench {

// Calls body(t) for t = 0 .. threads - 1, at once, and returns when all are done. The threads are those that PyTorch's
// own parallel regions use, where this process has loaded an OpenMP runtime: two pools would fight for the cores, since
// an OpenMP thread goes on spinning for a while after its work.
void parallel(int threads, const std::function<void(int)>& body);

// Whether `parallel` uses the process's OpenMP runtime.
bool shares_openmp();

}  // namespace chunkbench
