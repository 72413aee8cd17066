"""The instruction set that this project's own kernels use."""

from __future__ import annotations

from chunkbench.kernels import cpu
from chunkbench.kernels.cpu.decode import chosen_isa
from chunkbench.kernels.triton import capability


def instruction_set(device: str) -> str | None:
    """On a CPU, the instruction set in use, or None without a native module; on a GPU `sm_90` or similar."""
    if device == "cuda":
        return f"sm_{capability()}"
    return chosen_isa() if cpu.native() is not None else None
