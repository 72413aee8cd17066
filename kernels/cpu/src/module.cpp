// Python bindings of the native code. They release the interpreter lock while the native code runs.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <memory>

#include "cpu_features.h"
#include "decode_plan.h"
#include "linear.h"
#include "packing.h"
#include "parallel.h"
#include "probes.h"
#include "tensors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Ints = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatBuffer = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::map<std::string, bool> cpu_features() {
    const chunkbench::Features& found = chunkbench::features();
    return {{"avx2", found.avx2},         {"f16c", found.f16c},
            {"avx512f", found.avx512f},   {"avx512_bf16", found.avx512_bf16},
            {"amx_bf16", found.amx_bf16}, {"neon", found.neon},
            {"intel", found.intel}};
}

std::vector<std::string> names_of(const std::vector<chunkbench::Isa>& isas) {
    std::vector<std::string> names;
    for (chunkbench::Isa isa : isas) names.emplace_back(chunkbench::name_of(isa));
    return names;
}

std::vector<std::string> isas() { return names_of(chunkbench::usable_isas()); }

std::vector<std::string> compiled_isas() { return names_of(chunkbench::compiled_isas()); }

std::pair<double, double> read_pass(const FloatBuffer& buffer, int threads, const std::string& isa) {
    const chunkbench::Isa chosen = chunkbench::isa_named(isa);
    nb::gil_scoped_release release;
    const chunkbench::ReadPass pass = chunkbench::read_pass(buffer.data(), buffer.size(), threads, chosen);
    return {pass.seconds, pass.sum};
}

double matrix_flops_per_s(const std::string& dtype, int threads, double milliseconds, const std::string& isa) {
    const chunkbench::Dtype of = chunkbench::dtype_named(dtype);
    const chunkbench::Isa chosen = chunkbench::isa_named(isa);
    nb::gil_scoped_release release;
    return chunkbench::matrix_flops_per_s(of, threads, milliseconds, chosen);
}

chunkbench::Numbers numbers(const Ints& array) { return {array.data(), array.data() + array.size()}; }

// `columns`: the names of those of `items`; kernels/items.py has them, too.
void make_plan(chunkbench::DecodePlan* self, const std::string& dtype, int heads, int kv_heads, int head_dim,
               int chunk_size, const std::string& kv, const std::vector<std::string>& columns, const Table& items,
               const Ints& chunks, const Ints& rows, const Ints& folds, std::int64_t partial_items, std::int64_t batch,
               std::int64_t partials, int threads, bool fetch_early, bool side_by_side, const std::string& isa,
               int value_dim) {
    chunkbench::PlanArrays arrays;
    const auto& fields = chunkbench::kItemFields;
    if (!std::equal(columns.begin(), columns.end(), std::begin(fields), std::end(fields)) ||
        items.shape(1) != columns.size())
        throw std::invalid_argument("items: ten columns, named as the fields of Item in attention.h");
    const auto* first = reinterpret_cast<const chunkbench::Item*>(items.data());
    arrays.items.assign(first, first + items.shape(0));
    arrays.chunks = numbers(chunks);
    arrays.rows = numbers(rows);
    arrays.folds = numbers(folds);
    arrays.partial_items = partial_items;
    arrays.batch = batch;
    arrays.partials = partials;
    const chunkbench::Shape shape = chunkbench::make_shape(dtype, heads, kv_heads, head_dim, chunk_size, kv, value_dim);
    new (self) chunkbench::DecodePlan(shape, std::move(arrays), threads, {fetch_early, side_by_side},
                                      chunkbench::isa_named(isa));
}

// Scales of fp8 at an address: of K, then of V, of each KV head. 0: none.
chunkbench::KvScales scales_at(std::uintptr_t address, int kv_heads) {
    const auto* keys = reinterpret_cast<const float*>(address);
    return {keys, keys == nullptr ? nullptr : keys + kv_heads};
}

void decode(chunkbench::DecodePlan& self, std::uintptr_t q, std::uintptr_t out, float scale, int threads,
            std::int64_t shift, std::uintptr_t sums, std::uintptr_t kv_scales, float cap, std::uintptr_t sinks) {
    nb::gil_scoped_release release;
    self.decode(reinterpret_cast<const void*>(q), reinterpret_cast<void*>(out), scale, threads, shift,
                reinterpret_cast<const float*>(sums), scales_at(kv_scales, self.shape().kv_heads),
                {cap, reinterpret_cast<const float*>(sinks)});
}

// `sights` [b][7]: a Sight in each row.
void set_sights(chunkbench::DecodePlan& self, const Table& sights) {
    static_assert(sizeof(chunkbench::Sight) == 7 * sizeof(std::int64_t), "no padding");
    if (sights.shape(1) != 7) throw std::invalid_argument("sights: seven columns, the fields of Sight in attention.h");
    const auto* first = reinterpret_cast<const chunkbench::Sight*>(sights.data());
    self.set_sights({first, first + sights.shape(0)});
}

void accumulate(chunkbench::DecodePlan& self, std::uintptr_t q, std::uintptr_t outputs, std::uintptr_t stats,
                float scale, int threads) {
    nb::gil_scoped_release release;
    self.accumulate(reinterpret_cast<const void*>(q),
                    {reinterpret_cast<float*>(outputs), reinterpret_cast<float*>(stats), false}, scale, threads);
}

void decode_beside(chunkbench::DecodePlan& self, std::uintptr_t q, std::uintptr_t out, chunkbench::DecodePlan* other,
                   std::uintptr_t other_q, std::uintptr_t other_out, std::int64_t other_bytes, float scale,
                   int threads) {
    if (other_bytes < 0) throw std::invalid_argument("other_bytes cannot be negative");
    nb::gil_scoped_release release;
    self.decode_beside(reinterpret_cast<const void*>(q), reinterpret_cast<void*>(out), other,
                       reinterpret_cast<const void*>(other_q), reinterpret_cast<void*>(other_out), other_bytes, scale,
                       threads);
}

void set_compensation(chunkbench::DecodePlan& self, const Ints& entries, const FloatBuffer& shares,
                      const FloatBuffer& biases, std::int64_t count, std::int64_t stride) {
    self.set_compensation(numbers(entries), {shares.data(), shares.data() + shares.size()},
                          {biases.data(), biases.data() + biases.size()}, count, stride);
}

// Checks and runs in one call. False, and nothing done, unless q and out are contiguous tensors as the plan needs them.
bool decode_dense(chunkbench::DecodePlan& self, nb::handle q, nb::handle out, float scale, int threads,
                  std::int64_t shift) {
    const chunkbench::Shape& shape = self.shape();
    const auto address = [&](nb::handle tensor, int dimension) {
        const std::int64_t sizes[] = {self.batch(), shape.heads, dimension};
        return chunkbench::dense_address(tensor.ptr(), sizes, 3, shape.dtype);
    };
    const std::uintptr_t queries = address(q, shape.head_dim), outputs = address(out, shape.value_dim);
    if (!queries || !outputs) return false;
    decode(self, queries, outputs, scale, threads, shift, 0, 0, 0, 0);
    return true;
}

void read_chunks(chunkbench::DecodePlan& self, int threads) {
    nb::gil_scoped_release release;
    self.read(threads);
}

// A row for each unit: the fields of UnitSeconds, in the same order. q and out: 0 for a call that only reads.
nb::ndarray<nb::numpy, double, nb::ndim<2>> trace(chunkbench::DecodePlan& self, std::uintptr_t q, std::uintptr_t out,
                                                  float scale, int threads) {
    using Units = std::vector<chunkbench::UnitSeconds>;
    constexpr std::size_t kColumns = 7 + chunkbench::kParts;
    static_assert(sizeof(Units::value_type) == kColumns * sizeof(double));
    auto units = std::make_unique<Units>();
    {
        nb::gil_scoped_release release;
        *units = self.trace(q == 0 ? chunkbench::Call::read : chunkbench::Call::decode,
                            reinterpret_cast<const void*>(q), reinterpret_cast<void*>(out), scale, threads);
    }
    Units* const rows = units.get();
    const nb::capsule owner(units.release(), [](void* made) noexcept { delete static_cast<Units*>(made); });
    return {reinterpret_cast<double*>(rows->data()), {rows->size(), kColumns}, owner};
}

void pack(const std::string& dtype, int kv_heads, int head_dim, int chunk_size, const std::string& kv, std::uintptr_t k,
          std::uintptr_t v, const Ints& chunks, const Ints& slots, int threads, std::uintptr_t kv_scales,
          int value_dim) {
    const chunkbench::Shape shape =
        chunkbench::make_shape(dtype, kv_heads, kv_heads, head_dim, chunk_size, kv, value_dim);
    if (chunks.size() != slots.size() || threads < 1) {
        throw std::invalid_argument("chunks and slots have one entry for each token, threads is at least 1");
    }
    for (std::size_t i = 0; i < slots.size(); ++i) {
        if (slots.data()[i] < 0 || slots.data()[i] >= chunk_size) throw std::invalid_argument("slots: 0 .. chunk_size");
    }
    nb::gil_scoped_release release;
    chunkbench::pack(shape, reinterpret_cast<const void*>(k), reinterpret_cast<const void*>(v), chunks.data(),
                     slots.data(), static_cast<std::int64_t>(slots.size()), threads, scales_at(kv_scales, kv_heads));
}

void cut(const std::string& dtype, int kv_heads, int head_dim, int chunk_size, const std::string& kv,
         std::uintptr_t chunk, int tokens, int held, int value_dim) {
    const chunkbench::Shape shape =
        chunkbench::make_shape(dtype, kv_heads, kv_heads, head_dim, chunk_size, kv, value_dim);
    if (tokens < 0 || tokens > held || held > chunk_size)
        throw std::invalid_argument("0 <= tokens <= held <= chunk_size");
    chunkbench::cut(shape, reinterpret_cast<void*>(chunk), tokens, held);
}

chunkbench::Finish finish_named(const std::string& name) {
    using chunkbench::Finish;
    static const std::map<std::string, Finish> finishes = {
        {"store", Finish::store}, {"store32", Finish::store32}, {"add32", Finish::add32}, {"gate", Finish::gate}};
    const auto found = finishes.find(name);
    if (found == finishes.end()) throw std::invalid_argument("finish is store, store32, add32 or gate, not " + name);
    return found->second;
}

chunkbench::Linear make_linear(const std::string& dtype, std::int64_t in, std::int64_t blocks, std::uintptr_t weights,
                               std::uintptr_t bias, const std::string& finish) {
    constexpr std::int64_t kMost = std::int64_t{1} << 24;
    const chunkbench::Finish end = finish_named(finish);
    if (in < 16 || in > kMost || in % 16 != 0) throw std::invalid_argument("linear: in is 16, 32, .. 16777216");
    if (blocks < 1 || blocks > kMost) throw std::invalid_argument("linear: blocks is 1 .. 16777216");
    if (end == chunkbench::Finish::gate && blocks % 2 != 0)
        throw std::invalid_argument("linear: a block of gate and one of up alternate, so blocks is even");
    return {chunkbench::dtype_named(dtype),       in, blocks, reinterpret_cast<const void*>(weights),
            reinterpret_cast<const float*>(bias), end};
}

void linear(const chunkbench::Linear& layer, std::uintptr_t x, std::int64_t rows, std::uintptr_t y, int threads,
            const std::string& isa) {
    if (rows < 0 || threads < 1) throw std::invalid_argument("linear: threads is at least 1");
    const chunkbench::Isa chosen = chunkbench::isa_named(isa);
    nb::gil_scoped_release release;
    chunkbench::linear({layer, reinterpret_cast<const void*>(x), rows, reinterpret_cast<void*>(y)}, threads, chosen);
}

void rms_norm(const std::string& dtype, std::uintptr_t from, std::int64_t rows, std::int64_t size,
              std::uintptr_t weight, float epsilon, std::uintptr_t to, int threads) {
    if (rows < 0 || size < 16 || size % 16 != 0) throw std::invalid_argument("rms_norm: size is a multiple of 16");
    if (threads < 1) throw std::invalid_argument("rms_norm: threads is at least 1");
    const chunkbench::Dtype type = chunkbench::dtype_named(dtype);
    const chunkbench::Isa isa = chunkbench::isa_named("");
    nb::gil_scoped_release release;
    chunkbench::rms_norm(type, reinterpret_cast<const float*>(from), rows, size, reinterpret_cast<const float*>(weight),
                         epsilon, reinterpret_cast<void*>(to), threads, isa);
}

chunkbench::DecoderLayer make_layer(const chunkbench::Linear& qkv, const chunkbench::Linear& out,
                                    const chunkbench::Linear& gate_up, const chunkbench::Linear& down,
                                    std::uintptr_t first_norm, std::uintptr_t second_norm, float epsilon, int heads,
                                    int kv_heads, int d) {
    using chunkbench::Finish;
    constexpr int kMost = 65536;
    if (d < 32 || d > kMost || d % 32 != 0) throw std::invalid_argument("the head dimension is a multiple of 32");
    if (heads < 1 || heads > kMost || kv_heads < 1 || kv_heads > kMost)
        throw std::invalid_argument("heads and kv_heads are 1 .. 65536");
    const std::int64_t width = qkv.in, attended = std::int64_t{heads} * d;
    const auto fits = [&](const chunkbench::Linear& layer, std::int64_t in, std::int64_t outputs, Finish finish) {
        return layer.dtype == qkv.dtype && layer.in == in && 16 * layer.blocks == outputs && layer.finish == finish;
    };
    if (!fits(qkv, width, attended + std::int64_t{2} * kv_heads * d, Finish::store) ||
        !fits(out, attended, width, Finish::add32) || !fits(gate_up, width, 2 * down.in, Finish::gate) ||
        !fits(down, down.in, width, Finish::add32))
        throw std::invalid_argument("the linear layers of a decoder layer do not fit together");
    return {qkv,
            out,
            gate_up,
            down,
            reinterpret_cast<const float*>(first_norm),
            reinterpret_cast<const float*>(second_norm),
            epsilon,
            heads,
            kv_heads,
            d};
}

chunkbench::StepBuffers make_buffers(std::int64_t rows, std::uintptr_t hidden, std::uintptr_t normed,
                                     std::uintptr_t qkv, std::uintptr_t q, std::uintptr_t k, std::uintptr_t v,
                                     std::uintptr_t attended, std::uintptr_t gated, std::uintptr_t cosines,
                                     std::uintptr_t sines) {
    const auto at = [](std::uintptr_t address) { return reinterpret_cast<void*>(address); };
    return {rows,
            static_cast<float*>(at(hidden)),
            at(normed),
            at(qkv),
            at(q),
            at(k),
            at(v),
            at(attended),
            at(gated),
            static_cast<float*>(at(cosines)),
            static_cast<float*>(at(sines))};
}

template <void (*Half)(const chunkbench::DecoderLayer&, const chunkbench::StepBuffers&, int, chunkbench::Isa)>
void half_layer(const chunkbench::DecoderLayer& self, const chunkbench::StepBuffers& step, int threads) {
    if (threads < 1) throw std::invalid_argument("a decoder layer: threads is at least 1");
    const chunkbench::Isa isa = chunkbench::isa_named("");
    nb::gil_scoped_release release;
    Half(self, step, threads, isa);
}

// All layers of a step in one call: their K and V go to `slots` of the chunks at `chunks`, then `plan` attends to them.
// Between two calls per layer, Python would find its own data evicted by the weights. Returns the seconds of products,
// writing and attention.
std::array<double, 3> run_layers(chunkbench::DecodePlan& plan, const std::vector<chunkbench::DecoderLayer*>& layers,
                                 const chunkbench::StepBuffers& step, const Ints& chunks, const Ints& slots,
                                 std::int64_t layer_bytes, float scale, int threads) {
    const chunkbench::Shape& shape = plan.shape();
    const auto rows = static_cast<std::size_t>(step.rows);
    if (chunks.size() != rows || slots.size() != rows || step.rows != plan.batch() || threads < 1)
        throw std::invalid_argument("run_layers: the plan, chunks and slots have an entry for each row");
    for (std::size_t i = 0; i < rows; ++i)
        if (slots.data()[i] < 0 || slots.data()[i] >= shape.chunk_size)
            throw std::invalid_argument("slots: 0 .. chunk_size");
    for (const chunkbench::DecoderLayer* layer : layers)
        if (!layer || layer->qkv.dtype != shape.dtype || layer->heads != shape.heads ||
            layer->kv_heads != shape.kv_heads || layer->d != shape.head_dim || layer->d != shape.value_dim)
            throw std::invalid_argument("run_layers: a layer has other heads or another dtype than the plan");
    const chunkbench::Isa isa = chunkbench::isa_named("");
    nb::gil_scoped_release release;
    std::vector<std::int64_t> at(chunks.data(), chunks.data() + rows);
    std::int64_t shift = 0;
    std::array<double, 3> seconds{};
    auto& [products, writing, attention] = seconds;
    auto since = std::chrono::steady_clock::now();
    const auto add_to = [&since](double& part) {
        const auto now = std::chrono::steady_clock::now();
        part += std::chrono::duration<double>(now - since).count();
        since = now;
    };
    for (const chunkbench::DecoderLayer* layer : layers) {
        chunkbench::before_attention(*layer, step, threads, isa);
        add_to(products);
        chunkbench::pack(shape, step.k, step.v, at.data(), slots.data(), step.rows,
                         step.rows < chunkbench::kFewRows ? 1 : threads);
        add_to(writing);
        plan.decode(step.q, step.attended, scale, threads, shift, nullptr);
        add_to(attention);
        chunkbench::after_attention(*layer, step, threads, isa);
        add_to(products);
        shift += layer_bytes;
        for (std::int64_t& address : at) address += layer_bytes;
    }
    return seconds;
}

std::uintptr_t dense_address(nb::handle tensor, const nb::tuple& shape, const std::string& dtype) {
    constexpr std::size_t kMost = 4;
    if (shape.size() > kMost) throw std::invalid_argument("shape: at most four dimensions");
    std::int64_t sizes[kMost];
    for (std::size_t i = 0; i < shape.size(); ++i) sizes[i] = nb::cast<std::int64_t>(shape[i]);
    return chunkbench::dense_address(tensor.ptr(), sizes, shape.size(), chunkbench::dtype_named(dtype));
}

}  // namespace

NB_MODULE(_native, m) {
    m.def("cpu_features", &cpu_features,
          "Properties of this CPU (and operating system) that decide how the kernels run.");
    m.def("isas", &isas, "Instruction sets that this binary can use here, from the plainest to the best.");
    m.def("compiled_isas", &compiled_isas, "Instruction sets that this binary holds code for, on any CPU.");
    m.def("read_pass", &read_pass, "buffer"_a.noconvert(), "threads"_a, "isa"_a = "",
          "One pass over a contiguous float32 buffer on the CPU: (seconds, sum of its elements).");
    m.def("matrix_flops_per_s", &matrix_flops_per_s, "dtype"_a, "threads"_a, "milliseconds"_a, "isa"_a = "",
          "Floating-point operations per second of multiply-add loops held in registers.");
    m.def("pack", &pack, "dtype"_a, "kv_heads"_a, "head_dim"_a, "chunk_size"_a, "kv_dtype"_a, "k"_a, "v"_a, "chunks"_a,
          "slots"_a, "threads"_a, "kv_scales"_a = 0, "value_dim"_a = 0,
          "Pack token i of k, v (addresses of [tokens][kv_heads][head_dim]) into slots[i] of the chunk at chunks[i]. "
          "kv_scales: address of the scales of fp8, [2][kv_heads], 0 for 1. value_dim: dimension of V, 0 for that of "
          "K; with kv_dtype latent v is not read.");
    nb::class_<chunkbench::Linear>(m, "Linear", "Packed weights of a linear layer; see linear.h.");
    m.def("make_linear", &make_linear, "dtype"_a, "in_"_a, "blocks"_a, "weights"_a, "bias"_a, "finish"_a,
          "Weights at an address, a float32 bias or 0; finish: store, store32, add32 or gate.");
    m.def("linear", &linear, "layer"_a, "x"_a, "rows"_a, "y"_a, "threads"_a, "isa"_a = "", "y = x W^T + bias.");
    m.def("rms_norm", &rms_norm, "dtype"_a, "from_"_a, "rows"_a, "size"_a, "weight"_a, "epsilon"_a, "to"_a, "threads"_a,
          "Root-mean-square norm of float32 rows.");
    nb::class_<chunkbench::StepBuffers>(m, "StepBuffers", "Addresses of what a step computes; see linear.h.");
    m.def("make_buffers", &make_buffers, "rows"_a, "hidden"_a, "normed"_a, "qkv"_a, "q"_a, "k"_a, "v"_a, "attended"_a,
          "gated"_a, "cosines"_a, "sines"_a);
    nb::class_<chunkbench::DecoderLayer>(m, "DecoderLayer", "A layer of the Llama family; see linear.h.")
        .def("before_attention", &half_layer<chunkbench::before_attention>, "step"_a, "threads"_a)
        .def("after_attention", &half_layer<chunkbench::after_attention>, "step"_a, "threads"_a);
    m.def("make_layer", &make_layer, "qkv"_a, "out"_a, "gate_up"_a, "down"_a, "first_norm"_a, "second_norm"_a,
          "epsilon"_a, "heads"_a, "kv_heads"_a, "d"_a);
    m.def(
        "use_tensors_of", [](nb::handle type) { return chunkbench::use_tensors_of(type.ptr()); }, "type"_a,
        "From now on `dense_address` reads tensors of this class. False if it cannot.");
    m.def("dense_address", &dense_address, "tensor"_a.none(), "shape"_a, "dtype"_a,
          "The address of a contiguous CPU tensor with this shape and dtype, 0 for every other object.");
    m.def("cut", &cut, "dtype"_a, "kv_heads"_a, "head_dim"_a, "chunk_size"_a, "kv_dtype"_a, "chunk"_a, "tokens"_a,
          "held"_a, "value_dim"_a = 0,
          "Forget what the chunk at an address, which holds `held` tokens, holds beyond its first `tokens`.");
    nb::class_<chunkbench::DecodePlan>(m, "DecodePlan", "The work of one plan; see kernels/cpu/decode.py.")
        .def("__init__", &make_plan, "dtype"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "chunk_size"_a, "kv_dtype"_a,
             "columns"_a, "items"_a, "chunks"_a, "rows"_a, "folds"_a, "partial_items"_a, "batch"_a, "partials"_a,
             "threads"_a, "fetch_early"_a, "side_by_side"_a, "isa"_a, "value_dim"_a = 0)
        .def("set_last_tokens", [](chunkbench::DecodePlan& self,
                                   const Ints& tokens) { self.set_last_tokens(tokens.data(), tokens.size()); })
        .def("decode", &decode, "q"_a, "out"_a, "scale"_a, "threads"_a, "shift"_a = 0, "sums"_a = 0, "kv_scales"_a = 0,
             "cap"_a = 0, "sinks"_a = 0,
             "shift: bytes from the chunks' addresses to those of another layer; sums: address of the layer's sums; "
             "kv_scales: that of its scales of fp8; cap and sinks: see ScoreChanges in attention.h.")
        .def("take_memory", &chunkbench::DecodePlan::take_memory, "before"_a,
             "Take the work memory of a plan that is not used any more.")
        .def("set_sights", &set_sights, "sights"_a, "Which tokens each row reads: see Sight in attention.h.")
        .def("accumulate", &accumulate, "q"_a, "outputs"_a, "stats"_a, "scale"_a, "threads"_a,
             "`decode` of layer 0 that starts from running results and leaves the new ones: sums of V and statistics.")
        .def("reserve_results", &chunkbench::DecodePlan::reserve_results, "Allocate what `decode_beside` needs.")
        .def("decode_beside", &decode_beside, "q"_a, "out"_a, "other"_a.none(), "other_q"_a, "other_out"_a,
             "other_bytes"_a, "scale"_a, "threads"_a,
             "Attention over the contexts of two plans; see decode_plan.h. other: None for a part of 0.")
        .def("set_compensation", &set_compensation, "entries"_a, "shares"_a, "biases"_a, "count"_a, "stride"_a,
             "The compensation token of each row: the means of what an entry sums, and a bias of its score.")
        .def("decode_dense", &decode_dense, "q"_a.none(), "out"_a.none(), "scale"_a, "threads"_a, "shift"_a = 0,
             "`decode` of tensors. False, and nothing done, unless both are contiguous and have the plan's shape and "
             "dtype.")
        .def("run_layers", &run_layers, "layers"_a, "step"_a, "chunks"_a, "slots"_a, "layer_bytes"_a, "scale"_a,
             "threads"_a,
             "All decoder layers of a step; K and V of row i go to slots[i] of the chunk at chunks[i]. Returns the "
             "seconds of products, writing K and V, and attention.")
        .def("read", &read_chunks, "threads"_a, "Read all chunks in the order of `decode`, without arithmetic.")
        .def("trace", &trace, "q"_a, "out"_a, "scale"_a, "threads"_a,
             "`decode` of layer 0, or with q = 0 `read`: a row for each unit, see decode_plan.h.");
}
