"""Addresses of tensors, checked in one call of the native module.

Every attribute of a tensor that Python reads takes more than a microsecond when caches are cold, and a small decode
step takes tens of them. The native module reads all that matters at once, where PyTorch offers the C table of DLPack
1.2. Elsewhere it knows no tensor's address, and callers ask the tensor itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from chunkbench.kernels.cpu import native


@functools.cache
def reads_tensors() -> bool:
    """Whether the native module can read PyTorch's tensors. Call it once before the module gets tensors."""
    module = native()
    return module is not None and bool(module.use_tensors_of(torch.Tensor))


def dense_address() -> Callable[[torch.Tensor, tuple[int, ...], str], int] | None:
    """A function of tensor, shape and dtype name: the address of a contiguous CPU tensor of these, 0 for all others.

    It does not look at gradients. None if the native module cannot read tensors.
    """
    module = native()
    return module.dense_address if module is not None and reads_tensors() else None
