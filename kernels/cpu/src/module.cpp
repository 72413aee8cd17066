// Python bindings of the native code: arguments in, results out, the interpreter lock released in between.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "cpu_features.h"
#include "probes.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using FloatBuffer = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::map<std::string, bool> cpu_features() {
    const chunkbench::Features& found = chunkbench::features();
    return {{"avx2", found.avx2},
            {"f16c", found.f16c},
            {"avx512f", found.avx512f},
            {"avx512_bf16", found.avx512_bf16},
            {"neon", found.neon}};
}

std::vector<std::string> isas() {
    std::vector<std::string> names;
    for (chunkbench::Isa isa : chunkbench::usable_isas()) names.emplace_back(chunkbench::name_of(isa));
    return names;
}

std::pair<double, double> read_pass(const FloatBuffer& buffer, int threads, const std::string& isa) {
    const chunkbench::Isa chosen = chunkbench::isa_named(isa);
    nb::gil_scoped_release release;
    const chunkbench::ReadPass pass = chunkbench::read_pass(buffer.data(), buffer.size(), threads, chosen);
    return {pass.seconds, pass.sum};
}

double matrix_flops_per_s(const std::string& dtype, int threads, double milliseconds, const std::string& isa) {
    const chunkbench::Isa chosen = chunkbench::isa_named(isa);
    nb::gil_scoped_release release;
    return chunkbench::matrix_flops_per_s(dtype, threads, milliseconds, chosen);
}

}  // namespace

NB_MODULE(_native, m) {
    m.def("cpu_features", &cpu_features, "Instruction sets of interest that this CPU and operating system support.");
    m.def("isas", &isas, "Instruction sets that this binary can use here, from the plainest to the best.");
    m.def("read_pass", &read_pass, "buffer"_a.noconvert(), "threads"_a, "isa"_a = "",
          "One pass over a contiguous float32 buffer on the CPU: (seconds, sum of its elements).");
    m.def("matrix_flops_per_s", &matrix_flops_per_s, "dtype"_a, "threads"_a, "milliseconds"_a, "isa"_a = "",
          "Floating-point operations per second of multiply-add loops held in registers.");
}
