#include "cpu_features.h"

#include <stdexcept>

#ifdef CHUNKBENCH_HAVE_AMX_BF16
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace chunkbench {
namespace {

#ifdef CHUNKBENCH_HAVE_AMX_BF16
// Whether the CPU multiplies tiles of bfloat16 numbers and Linux saves the tiles of this process, which has to ask:
// they are 8 KB for each thread. PyTorch asks, too; asking again changes nothing.
bool may_use_tiles() {
    constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kBf16) == 0 || (d & kTile) == 0) return false;
    constexpr int kAsk = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kAsk, kTileData) == 0;
}
#endif

Features detect() {
    Features found;
#ifdef CHUNKBENCH_HAVE_X86
    __builtin_cpu_init();
    found.f16c = __builtin_cpu_supports("f16c");
    found.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && found.f16c;
    found.avx512f = __builtin_cpu_supports("avx512f");
    found.intel = __builtin_cpu_is("intel");
#endif
#ifdef CHUNKBENCH_HAVE_AVX512_BF16
    // Every CPU with the products of pairs also has AVX512-DQ, which the loops for them use.
    found.avx512_bf16 = found.avx512f && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bf16");
#endif
#ifdef CHUNKBENCH_HAVE_AMX_BF16
    found.amx_bf16 = found.avx512_bf16 && may_use_tiles();
#endif
#ifdef __aarch64__
    found.neon = true;
#endif
    return found;
}

}  // namespace

const Features& features() {
    static const Features found = detect();
    return found;
}

std::vector<Isa> compiled_isas() {
    std::vector<Isa> isas = {Isa::portable};
#ifdef CHUNKBENCH_HAVE_X86
    isas.insert(isas.end(), {Isa::avx2, Isa::avx512});
#endif
#ifdef CHUNKBENCH_HAVE_AVX512_BF16
    isas.push_back(Isa::avx512_bf16);
#endif
#ifdef CHUNKBENCH_HAVE_AMX_BF16
    isas.push_back(Isa::amx_bf16);
#endif
    return isas;
}

std::vector<Isa> usable_isas() {
    std::vector<Isa> isas = {Isa::portable};
    if (features().avx2) isas.push_back(Isa::avx2);
#ifdef CHUNKBENCH_EMULATE_AVX512
    const bool avx512 = features().avx2, avx512_bf16 = features().avx2;
#else
    const bool avx512 = features().avx512f, avx512_bf16 = features().avx512_bf16;
#endif
    if (avx512) isas.push_back(Isa::avx512);
    if (avx512_bf16) isas.push_back(Isa::avx512_bf16);
    if (features().amx_bf16) isas.push_back(Isa::amx_bf16);
    return isas;
}

const char* name_of(Isa isa) {
    switch (isa) {
        case Isa::avx2: return "avx2";
        case Isa::avx512: return "avx512";
        case Isa::avx512_bf16: return "avx512_bf16";
        case Isa::amx_bf16: return "amx_bf16";
        case Isa::portable: break;
    }
    return features().neon ? "neon" : "portable";
}

Isa isa_named(const std::string& name) {
    const std::vector<Isa> isas = usable_isas();
    if (name.empty()) return isas.back();
    std::string usable;
    for (Isa isa : isas) {
        if (name == name_of(isa)) return isa;
        usable += usable.empty() ? name_of(isa) : std::string(", ") + name_of(isa);
    }
    throw std::invalid_argument("instruction set '" + name + "' is not one that this CPU can run: " + usable);
}

}  // namespace chunkbench
