// The instruction sets that this CPU can execute, and the names that Python uses for them.
// (Not "features.h": the C library has a header of that name, and one of the two would hide the other.)
#pragma once

#include <string>
#include <vector>

namespace chunkbench {

enum class Isa { portable, avx2, avx512, avx512_bf16, amx_bf16 };

struct Features {
    bool avx2 = false;  // with FMA and F16C: the kernels need all three
    bool f16c = false;
    bool avx512f = false;
    bool avx512_bf16 = false;
    bool amx_bf16 = false;  // products of tiles, which the system lets this process use
    bool neon = false;
    bool intel = false;  // made by Intel
};

// Features that the CPU and the operating system support. The system must save the registers.
const Features& features();

// Instruction sets that this binary holds code for, on any CPU, from the simplest to the best.
std::vector<Isa> compiled_isas();

// Those that this CPU can run, from the simplest to the best.
std::vector<Isa> usable_isas();

const char* name_of(Isa isa);

// The instruction set with this name; "" stands for the best usable one. Throws std::invalid_argument if the name is
// unknown or this CPU cannot run the instruction set.
Isa isa_named(const std::string& name);

}  // namespace chunkbench
