// Preloaded into the processes of a trial: allocations that fail, a wall clock that somebody else sets, and an error
// of one `close`. The trial writes the numbers of a Page into the file that TORTURE_PAGE names. TORTURE_CLOSE is the
// number of the call that fails among those for files of TORTURE_FOLDER.
#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <string>

namespace {

struct Page {
    std::int64_t clock_s;              // added to the wall clock
    std::int64_t native;               // count large `new` of the native module; otherwise all large allocations
    std::int64_t least;                // bytes from which an allocation is large
    std::atomic<std::int64_t> until;   // allocations until one fails; 0: none will
    std::atomic<std::int64_t> failed;  // how many failed
};

Page* page = nullptr;

bool fails() {
    if (page->until.load() <= 0 || page->until.fetch_sub(1) != 1) return false;
    page->failed.fetch_add(1);
    errno = ENOMEM;
    return true;
}

bool large_fails(std::size_t size) {
    return page && !page->native && page->until.load() > 0 && static_cast<std::int64_t>(size) >= page->least && fails();
}

bool native_fails(std::size_t size, void* caller) {
    if (!page || !page->native || page->until.load() <= 0 || static_cast<std::int64_t>(size) < page->least)
        return false;
    Dl_info found{};
    return dladdr(caller, &found) && found.dli_fname && std::strstr(found.dli_fname, "/_native.") && fails();
}

template <class Function>
Function next(const char* name) {
    return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

__attribute__((constructor)) void map() {
    const char* const path = std::getenv("TORTURE_PAGE");
    const int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return;
    void* const mapped = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) page = static_cast<Page*>(mapped);
}

void* made(std::size_t size, void* caller) {
    void* const block = native_fails(size, caller) ? nullptr : std::malloc(size ? size : 1);
    return block ? block : throw std::bad_alloc();
}

}  // namespace

extern "C" {

void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t size) noexcept { return large_fails(size) ? nullptr : __libc_malloc(size); }

void* calloc(std::size_t count, std::size_t size) noexcept {
    return large_fails(count * size) ? nullptr : __libc_calloc(count, size);
}

void* realloc(void* block, std::size_t size) noexcept {
    return large_fails(size) ? nullptr : __libc_realloc(block, size);
}

int posix_memalign(void** block, std::size_t alignment, std::size_t size) noexcept {
    void* const found = large_fails(size) ? nullptr : __libc_memalign(alignment, size);
    if (!found) return ENOMEM;
    *block = found;
    return 0;
}

void* aligned_alloc(std::size_t alignment, std::size_t size) noexcept {
    return large_fails(size) ? nullptr : __libc_memalign(alignment, size);
}

int clock_gettime(clockid_t id, timespec* now) noexcept {
    static const auto real = next<int (*)(clockid_t, timespec*)>("clock_gettime");
    const int code = real(id, now);
    if (page && code == 0 && id == CLOCK_REALTIME) now->tv_sec += page->clock_s;
    return code;
}

int gettimeofday(timeval* now, void*) noexcept {
    timespec read{};
    const int code = clock_gettime(CLOCK_REALTIME, &read);
    *now = {read.tv_sec, read.tv_nsec / 1000};
    return code;
}

int close(int descriptor) {
    static const auto real = next<int (*)(int)>("close");
    static std::atomic<int> calls{0};
    const char *const folder = std::getenv("TORTURE_FOLDER"), *const at = std::getenv("TORTURE_CLOSE");
    char path[4096] = "";
    if (folder && at) {
        const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
        const auto size = readlink(link.c_str(), path, sizeof path - 1);
        path[size > 0 ? size : 0] = 0;
    }
    const int code = real(descriptor);
    const bool counts = folder && at && !std::strncmp(path, folder, std::strlen(folder)) &&
                        !std::strstr(path, ".lock") && !std::strstr(path, "worker.log");
    if (!counts || calls.fetch_add(1) + 1 != std::atoi(at)) return code;
    errno = EIO;
    return -1;
}

std::time_t time(std::time_t* now) noexcept {
    timespec read{};
    clock_gettime(CLOCK_REALTIME, &read);
    if (now) *now = read.tv_sec;
    return read.tv_sec;
}
}

void* operator new(std::size_t size) { return made(size, __builtin_return_address(0)); }
void* operator new[](std::size_t size) { return made(size, __builtin_return_address(0)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
    if (native_fails(size, __builtin_return_address(0))) throw std::bad_alloc();
    void* const block = aligned_alloc(static_cast<std::size_t>(alignment), size);
    return block ? block : throw std::bad_alloc();
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete[](void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
void operator delete[](void* block, std::size_t) noexcept { std::free(block); }
void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept { std::free(block); }
