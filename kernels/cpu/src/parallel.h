// Runs work on several threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace chunkbench {

// Largest number of threads, whatever the caller says: an OpenMP runtime that cannot start a thread ends the process.
constexpr int kMostThreads = 4096;

// Calls body(t) for t = 0 .. threads - 1 in parallel, and returns when all calls have returned. If some throw, throws
// the first exception then. If the process has loaded an OpenMP runtime, uses its threads, as PyTorch does. A second
// pool would compete for the cores, because an OpenMP thread spins for a while after its work.
void parallel(int threads, const std::function<void(int)>& body);

// Calls body(i, thread) for i = 0 .. count - 1. A thread that has finished one index takes the next free one.
template <class Body>
void share_out(std::int64_t count, int threads, const Body& body) {
    if (count == 0) return;
    if (threads > kMostThreads) threads = kMostThreads;
    if (threads > count) threads = static_cast<int>(count);
    std::atomic<std::int64_t> next{0};
    parallel(threads, [&](int thread) {
        for (std::int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) body(i, thread);
    });
}

}  // namespace chunkbench
