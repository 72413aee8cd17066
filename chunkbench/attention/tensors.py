"""Checks of the tensors that callers pass in."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from chunkbench.kvcache import KVCacheError


class WrongTensor(KVCacheError, ValueError):
    """A tensor's shape, dtype, device or memory layout does not fit the call."""


@dataclass(frozen=True)
class TensorSpec:
    """The dtype and the device of K, V, q and out."""

    dtype: torch.dtype
    device: torch.device

    def check(self, name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
        """Raise WrongTensor for another shape, dtype or device, and for a sparse tensor."""
        if tensor.shape != shape:
            raise WrongTensor(f"{name} has shape {tuple(tensor.shape)}, not {shape}")
        if tensor.dtype != self.dtype:
            raise WrongTensor(f"{name} is {tensor.dtype}, not {self.dtype}")
        if tensor.device != self.device:
            raise WrongTensor(f"{name} is on {tensor.device}, not on {self.device}")
        if tensor.layout != torch.strided:
            raise WrongTensor(f"{name} is a sparse tensor; K, V, q and out are dense")

    def check_out(self, out: torch.Tensor, shape: tuple[int, ...]) -> None:
        """Check `out` like `check` does; also raise WrongTensor if its elements overlap or it requires gradients."""
        self.check("out", out, shape)
        if any(stride == 0 and size > 1 for stride, size in zip(out.stride(), shape, strict=True)):
            raise WrongTensor("out has several elements at one address (it was expanded), so it cannot be written to")
        if out.requires_grad:
            raise WrongTensor("out requires gradients, but decode attention does not record any")
