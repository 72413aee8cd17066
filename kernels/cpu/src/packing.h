// Writing K and V into chunks, in the layout that attention.h describes.
#pragma once

#include <cstdint>

#include "attention.h"

namespace chunkbench {

// Pack token i (k[i] and v[i], each `[kv_heads][d]`) into slot slots[i] of the chunk at chunks[i].
// The tokens of a chunk must come in the order of their slots. Numbers of 8 bits are rounded here.
void pack(const Shape& shape, const void* k, const void* v, const std::int64_t* chunks, const std::int64_t* slots,
          std::int64_t tokens, int threads, KvScales scales = {nullptr, nullptr});

// Keep the first `tokens` of the `held` tokens in a chunk; the other slots become free.
void cut(const Shape& shape, void* chunk, int tokens, int held);

}  // namespace chunkbench
