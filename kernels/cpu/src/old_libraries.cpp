// Lets the module that a new GCC builds run on systems as old as those of manylinux_2_28: glibc 2.28, libstdc++ of GCC
// 8. Without this file, a module built by GCC 12 or later would need libstdc++ of GCC 12. scripts/release.py looks at
// what the module needs.
#include <exception>

#if defined(__GLIBCXX__) && defined(__x86_64__) && defined(__linux__) && _GLIBCXX_RELEASE >= 12

// The headers of GCC 12 and later call two members of std::exception_ptr that older libraries do not export. Their copy
// constructor and destructor, which all export, do the same. (The names before the comma are for this file alone.)
extern "C" {
void chunkbench_copy_exception(void* made, const void* from);
void chunkbench_end_exception(void* ended);
}
__asm__(".symver chunkbench_copy_exception,_ZNSt15__exception_ptr13exception_ptrC1ERKS0_@CXXABI_1.3.3");
__asm__(".symver chunkbench_end_exception,_ZNSt15__exception_ptr13exception_ptrD1Ev@CXXABI_1.3.3");

// Hidden: libstdc++ itself must not find these two, or they would call themselves. (Their class has a visibility, so
// GCC ignores the attribute.)
__asm__(".hidden _ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
__asm__(".hidden _ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");

namespace std::__exception_ptr {

// The copy has no destructor, so the exception has one more owner.
void exception_ptr::_M_addref() noexcept {
    void* copy = nullptr;
    chunkbench_copy_exception(&copy, this);
}

void exception_ptr::_M_release() noexcept {
    chunkbench_end_exception(this);
    _M_exception_object = nullptr;
}

}  // namespace std::__exception_ptr

#endif
