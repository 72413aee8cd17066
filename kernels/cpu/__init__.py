"""Native code for CPUs: attention kernels (`decode`), their store (`store`), and probes of the machine's peak rates.

The installation of the package compiles the module `_native`. The package also works without this module: then
`native()` is None, `why_missing()` gives the reason, and the probes raise `NativeMissing`.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["NativeMissing", "isa", "matrix_flops_per_s", "native", "read_seconds", "required", "why_missing", "why_not"]

REMEDY = "install a C++17 compiler and Python's headers, then install chunkbench again"


class NativeMissing(RuntimeError):
    """A call needs the compiled module, but it is missing."""


@functools.cache
def _load() -> tuple[ModuleType | None, str]:
    name = f"{__name__}._native"
    try:
        return importlib.import_module(name), ""
    except ModuleNotFoundError as error:
        if error.name != name:
            return None, f"the native module does not load: {error}"
        return None, f"the native module was not built ({REMEDY})"
    except ImportError as error:
        return None, f"the native module does not load: {error}"


def native() -> ModuleType | None:
    """The compiled module, or None if it is missing."""
    return _load()[0]


def why_missing() -> str:
    """Why `native()` is None; empty if the module is there."""
    return _load()[1]


def why_not(head_dim: int, chunk_size: int) -> str:
    """Why the kernels do not support a shape; empty if they do."""
    if chunk_size % 16 or head_dim > 1024:
        return "it supports chunk sizes that are multiples of 16 and head dimensions up to 1024"
    return ""


def isa() -> str:
    """The best instruction set that the compiled code can use on this CPU.

    One of amx_bf16, avx512_bf16, avx512, avx2, neon and portable.

    Raises NativeMissing.
    """
    best: str = required().isas()[-1]
    return best


def read_seconds(buffer: torch.Tensor, threads: int) -> float:
    """Seconds that `threads` threads need to read a contiguous float32 CPU buffer once and sum its numbers.

    Bytes / seconds is the read bandwidth. Use a buffer several times as large as the last-level cache.
    Raises TypeError or ValueError for a wrong buffer, ValueError for threads < 1, NativeMissing.
    """
    import torch

    module = required()
    if not isinstance(buffer, torch.Tensor):
        raise TypeError(f"buffer must be a torch.Tensor, got {type(buffer).__name__}")
    if buffer.dtype != torch.float32:
        raise TypeError(f"buffer must be float32, got {str(buffer.dtype).removeprefix('torch.')}")
    if buffer.device.type != "cpu":
        raise ValueError(f"buffer must be on the CPU, it is on {buffer.device}")
    if not buffer.is_contiguous():
        raise ValueError(
            f"buffer must be contiguous, its strides are {buffer.stride()} for shape {tuple(buffer.shape)}"
        )
    if buffer.numel() == 0:
        raise ValueError("buffer is empty")
    seconds: float = module.read_pass(buffer.detach().view(-1), threads)[0]
    return seconds


def matrix_flops_per_s(dtype: str, threads: int, milliseconds: float, isa: str = "") -> float:
    """Floating-point operations per second of multiply-add loops held in registers, all threads together.

    The result is the peak rate of the vector units. Matrix units (AMX) are not counted. `dtype`: float32, bfloat16 or
    float16. For bfloat16, a CPU with AVX512-BF16 uses its dot products. On other CPUs, and for float16, the rate is
    that of float32, because the kernels widen the numbers to float32. `milliseconds`: approximate time of the
    measurement, at most 60000. `isa`: an instruction set that this CPU can run; default: the best.

    Raises ValueError for another dtype, for threads < 1 or a time outside of ]0, 60000], and NativeMissing.
    """
    rate: float = required().matrix_flops_per_s(dtype, threads, milliseconds, isa)
    return rate


def required() -> ModuleType:
    """The compiled module. Raises NativeMissing with the reason if it is missing."""
    module, why = _load()
    if module is None:
        raise NativeMissing(why)
    return module
