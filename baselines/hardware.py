"""The instruction set that this project's own kernels use."""

from __future__ import annotations

from chunkbench.kernels import cpu
from chunkbench.kernels.cpu.decode import chosen_isa
from chunkbench.kernels.triton import capability
from chunkbench.kernels.triton.tuning import nearest, read


def instruction_set(device: str) -> str | None:
    """On a GPU `sm_90` or similar. On a CPU the instruction set in use, or None without a native module.

    If the tuning table has no row for the GPU, the text also names the GPU whose row is used. `chunkbench tune` makes a
    row for this GPU.
    """
    if device == "cuda":
        own, row = f"sm_{capability()}", nearest(capability(), read())
        return own if row in (own, None) else f"{own} (sizes of {row})"
    return chosen_isa() if cpu.native() is not None else None
