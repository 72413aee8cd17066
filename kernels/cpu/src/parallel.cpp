#include "parallel.h"

#include <dlfcn.h>

#include <atomic>
#include <exception>
#include <thread>
#include <vector>

// The version of dlsym that all of glibc's versions have, see old_libraries.cpp.
#if defined(__GLIBC__) && defined(__x86_64__)
__asm__(".symver dlsym,dlsym@GLIBC_2.2.5");
#endif

namespace chunkbench {
namespace {

// The entry point of GNU's OpenMP runtime. The runtimes of LLVM and Intel have it, too.
using OpenMpParallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

OpenMpParallel find_openmp() { return reinterpret_cast<OpenMpParallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel")); }

OpenMpParallel openmp() {
    static const OpenMpParallel found = find_openmp();
    return found;
}

struct Team {
    const std::function<void(int)>& body;
    int size;
    std::atomic<int> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr error;

    // An exception that left a thread would end the process, so the first one is kept for the caller.
    void run(int thread) {
        try {
            body(thread);
        } catch (...) {
            if (!failed.exchange(true)) error = std::current_exception();
        }
    }
};

// The runtime may start fewer threads than requested, so each thread takes numbers until none is left.
void join(void* data) {
    auto* team = static_cast<Team*>(data);
    for (int t = team->next.fetch_add(1); t < team->size; t = team->next.fetch_add(1)) team->run(t);
}

}  // namespace

void parallel(int threads, const std::function<void(int)>& body) {
    if (threads <= 1) return body(0);
    Team team{body, threads};
    if (openmp() != nullptr) {
        openmp()(join, &team, static_cast<unsigned>(threads), 0);
    } else {
        std::vector<std::thread> others;
        try {
            for (int t = 1; t < threads; ++t) others.emplace_back(&Team::run, &team, t);
        } catch (...) {  // destroying an unjoined thread would end the process
            for (std::thread& other : others) other.join();
            throw;
        }
        team.run(0);
        for (std::thread& other : others) other.join();
    }
    if (team.failed) std::rethrow_exception(team.error);
}

}  // namespace chunkbench
