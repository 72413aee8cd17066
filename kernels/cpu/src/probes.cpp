#include "probes.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "parallel.h"

namespace chunkbench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point start, Clock::time_point end) {
    return std::chrono::duration<double>(end - start).count();
}

void require_threads(int threads) {
    if (threads >= 1 && threads <= kMostThreads) return;
    throw std::invalid_argument("threads must be at least 1 and at most 4096, got " + std::to_string(threads));
}

// Runs work(thread) on all threads; they wait for each other before they start. Returns the seconds from the first
// start to the last end, so without the time to create and join the threads.
double run_together(int threads, const std::function<void(int)>& work) {
    std::vector<Clock::time_point> starts(threads), ends(threads);
    std::atomic<int> arrived{0};
    const auto body = [&](int index) {
        ++arrived;
        while (arrived.load(std::memory_order_acquire) < threads) std::this_thread::yield();
        starts[index] = Clock::now();
        work(index);
        ends[index] = Clock::now();
    };
    std::vector<std::thread> others;
    try {
        for (int index = 1; index < threads; ++index) others.emplace_back(body, index);
    } catch (...) {
        arrived = threads;  // lets the threads that exist finish, so that they can be joined
        for (std::thread& thread : others) thread.join();
        throw;
    }
    body(0);
    for (std::thread& thread : others) thread.join();
    return seconds_between(*std::min_element(starts.begin(), starts.end()),
                           *std::max_element(ends.begin(), ends.end()));
}

}  // namespace

ReadPass read_pass(const float* data, std::size_t count, int threads, Isa isa) {
    require_threads(threads);
    // Parts begin at multiples of 16 floats (a cache line), so that no two threads read the same line.
    const std::size_t lines = count / 16;
    const Loops loops = loops_of(isa, Dtype::float32);
    std::vector<double> sums(threads);
    const double seconds = run_together(threads, [&](int index) {
        const std::size_t begin = lines * index / threads * 16;
        const std::size_t end = index + 1 == threads ? count : lines * (index + 1) / threads * 16;
        // Sum in blocks: a float sum has 24 bits and would lose small values in a buffer of hundreds of megabytes.
        constexpr std::size_t block = std::size_t{1} << 20;
        double total = 0.0;
        for (std::size_t at = begin; at < end; at += block) total += loops.sum(data + at, std::min(block, end - at));
        sums[index] = total;
    });
    double total = 0.0;
    for (double part : sums) total += part;
    return {seconds, total};
}

double matrix_flops_per_s(Dtype dtype, int threads, double milliseconds, Isa isa) {
    require_threads(threads);
    if (!(milliseconds > 0.0 && milliseconds <= 60000.0))
        throw std::invalid_argument("milliseconds must be above 0 and at most 60000");
    const Loops loops = loops_of(isa, dtype);
    constexpr std::int64_t iterations = 4096;  // tens of microseconds: few clock reads, but an exact end
    std::vector<std::int64_t> runs_of(threads);
    std::vector<float> results(threads);
    const double seconds = run_together(threads, [&](int index) {
        const Clock::time_point start = Clock::now();
        std::int64_t runs = 0;
        float result = 0.0f;
        do {
            result += loops.multiply_add(iterations);
            ++runs;
        } while (seconds_between(start, Clock::now()) * 1e3 < milliseconds);
        runs_of[index] = runs;
        results[index] = result;
    });
    double flops = 0.0;
    for (std::int64_t runs : runs_of) flops += static_cast<double>(runs) * iterations * loops.flops;
    for (float result : results)
        if (!(result == result)) throw std::runtime_error("the multiply-add loop gave NaN");
    return flops / seconds;
}

}  // namespace chunkbench
