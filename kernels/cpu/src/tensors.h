// Gets the address of a tensor, and checks that a kernel can use the tensor, in one call.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>

#include "attention.h"

namespace chunkbench {

// `type` is a class of tensors. Its attribute `__dlpack_c_exchange_api__` (a capsule, DLPack 1.2) holds the functions
// that describe a tensor of that class without a call into Python. Returns false if the class has no such attribute,
// or one of another version.
bool use_tensors_of(PyObject* type);

// The address of a contiguous tensor on the CPU with this shape and dtype. 0 for every other object; for tensors
// without elements; and always before `use_tensors_of` was successful. Ignores gradients. Sets no Python error.
std::uintptr_t dense_address(PyObject* object, const std::int64_t* shape, std::size_t dimensions, Dtype dtype);

}  // namespace chunkbench
