#include "cpu_features.h"

#include <stdexcept>

namespace chunkbench {
namespace {

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
    found.avx512_bf16 = found.avx512f && __builtin_cpu_supports("avx512bf16");
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
    return isas;
}

const char* name_of(Isa isa) {
    switch (isa) {
        case Isa::avx2: return "avx2";
        case Isa::avx512: return "avx512";
        case Isa::avx512_bf16: return "avx512_bf16";
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
