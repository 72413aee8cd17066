"""Gets addresses of tensors, and checks the tensors, in one call of the native module.

Python needs more than a microsecond to read one attribute of a tensor when caches are cold. A small decode step takes
only tens of microseconds. If PyTorch has the C table of DLPack 1.2, the native module reads all necessary attributes at
once. Without this table the module cannot read tensors, and callers read the attributes in Python.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from chunkbench.kernels.cpu import native


@functools.cache
def reads_tensors() -> bool:
    """Whether the native module can read PyTorch's tensors. Call this function once before you pass tensors to the
    module."""
    module = native()
    return module is not None and bool(module.use_tensors_of(torch.Tensor))


def dense_address() -> Callable[[torch.Tensor, tuple[int, ...], str], int] | None:
    """Return a function of a tensor, a shape and the name of a dtype. It gives the address of a contiguous CPU tensor
    with this shape and dtype, and 0 for any other tensor. It ignores gradients.

    Returns None if the native module cannot read tensors.
    """
    module = native()
    return module.dense_address if module is not None and reads_tensors() else None
