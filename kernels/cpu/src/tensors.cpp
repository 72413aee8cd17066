#include "tensors.h"

#include <nanobind/ndarray.h>

namespace chunkbench {

namespace {

using nanobind::dlpack::dltensor;

// The table of functions that DLPack 1.2 describes. Only the fields up to `describe` are declared.
struct Exchange {
    std::uint32_t major, minor;
    void* earlier;
    void *allocate, *export_tensor, *import_tensor;
    int (*describe)(void* object, dltensor* described);  // 0, or -1 with a Python error
};

nanobind::dlpack::dtype element_of(Dtype dtype) {
    using Code = nanobind::dlpack::dtype_code;
    const Code code = dtype == Dtype::bfloat16 ? Code::Bfloat : Code::Float;
    return {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(dtype == Dtype::float32 ? 32 : 16), 1};
}

const Exchange* exchange = nullptr;
PyTypeObject* tensors = nullptr;

}  // namespace

bool use_tensors_of(PyObject* type) {
    PyObject* capsule = PyType_Check(type) ? PyObject_GetAttrString(type, "__dlpack_c_exchange_api__") : nullptr;
    const auto* found =
        capsule ? static_cast<const Exchange*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api")) : nullptr;
    Py_XDECREF(capsule);
    PyErr_Clear();
    if (!found || found->major != 1 || !found->describe) return false;
    Py_INCREF(type);  // kept for the life of the process, and with it the table
    tensors = reinterpret_cast<PyTypeObject*>(type);
    exchange = found;
    return true;
}

std::uintptr_t dense_address(PyObject* object, const std::int64_t* shape, std::size_t dimensions, Dtype dtype) {
    if (!exchange || !PyObject_TypeCheck(object, tensors)) return 0;
    dltensor tensor{};
    if (exchange->describe(object, &tensor)) {
        PyErr_Clear();
        return 0;
    }
    if (tensor.device.device_type != nanobind::device::cpu::value || tensor.dtype != element_of(dtype) ||
        tensor.ndim != static_cast<std::int32_t>(dimensions) || !tensor.data || !tensor.strides) {
        return 0;
    }
    std::int64_t stride = 1;
    for (std::size_t i = dimensions; i-- > 0;) {
        if (tensor.shape[i] != shape[i] || (shape[i] != 1 && tensor.strides[i] != stride)) return 0;
        stride *= shape[i];
    }
    return reinterpret_cast<std::uintptr_t>(tensor.data) + tensor.byte_offset;
}

}  // namespace chunkbench
