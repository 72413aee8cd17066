// What the CPU that runs this can execute, and the names by which Python asks for it.
// (Not "features.h": the C library has a header of that name, and one of the two would hide the other.)
#pragma once

#include <string>
#include <vector>

namespace chunkbench {

enum class Isa { portable, avx2, avx512, avx512_bf16 };

struct Features {
    bool avx2 = false;  // with FMA and F16C: one without the others is of no use here
    bool f16c = false;
    bool avx512f = false;
    bool avx512_bf16 = false;
    bool neon = false;
};

// Both the CPU and the operating system (which has to save the registers) support what is reported.
const Features& features();

// Instruction sets that this binary holds code for and this CPU can run, from the plainest to the best.
std::vector<Isa> usable_isas();

const char* name_of(Isa isa);

// "" is the best usable one. Throws std::invalid_argument for an unknown name or one that this CPU cannot run.
Isa isa_named(const std::string& name);

}  // namespace chunkbench
