"""Checks of the tensors that callers pass in."""

from __future__ import annotations

import torch

from chunkbench.attention.errors import KVCacheError
from chunkbench.kernels.cpu.store import dtype_name
from chunkbench.kernels.cpu.tensors import dense_address


class WrongTensor(KVCacheError, ValueError):
    """A tensor's shape, dtype, device or memory layout does not fit the call."""


class TensorSpec:
    """The dtype and the device of K, V, q and out.

    The native module checks a contiguous tensor on the CPU in one call. A check in Python reads several attributes, and
    with cold caches each takes microseconds. A small decode step takes only tens of microseconds. If the native module
    does not accept a tensor, Python checks the tensor again and finds the reason for the error message.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._kind = dtype, device, torch.strided
        self._address = dense_address() if device.type == "cpu" else None
        self._dtype_name = dtype_name(dtype)

    def check(self, name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        """Return the tensor without its gradient. Raises WrongTensor for another shape, dtype or device, or a sparse
        tensor.

        Detaching a tensor that requires gradients takes less time than entering `torch.no_grad` for all tensors.
        """
        if not self._is_dense(tensor, shape) and (
            tensor.shape != shape or (tensor.dtype, tensor.device, tensor.layout) != self._kind
        ):
            raise self._error(name, tensor, shape)
        return tensor.detach() if tensor.requires_grad else tensor

    def check_out(self, out: torch.Tensor, shape: tuple[int, ...]) -> None:
        """Like `check`, for `out`. Also raises WrongTensor if elements of the tensor overlap or it requires
        gradients."""
        if self.check("out", out, shape) is not out:
            raise WrongTensor("out requires gradients, but decode attention does not record any")
        if self._is_dense(out, shape) or out.is_contiguous():
            return
        if any(stride == 0 and size > 1 for stride, size in zip(out.stride(), shape, strict=True)):
            raise WrongTensor("out has several elements at one address (it was expanded), so it cannot be written to")

    def _is_dense(self, tensor: torch.Tensor, shape: tuple[int, ...]) -> bool:
        return self._address is not None and self._address(tensor, shape, self._dtype_name) != 0

    def _error(self, name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> WrongTensor:
        """The error for a tensor that `check` refuses."""
        dtype, device, _ = self._kind
        if tensor.shape != shape:
            return WrongTensor(f"{name} has shape {tuple(tensor.shape)}, not {shape}")
        if tensor.dtype != dtype:
            return WrongTensor(f"{name} is {tensor.dtype}, not {dtype}")
        if tensor.device != device:
            return WrongTensor(f"{name} is on {tensor.device}, not on {device}")
        return WrongTensor(f"{name} is a sparse tensor; K, V, q and out are dense")
