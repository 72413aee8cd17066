"""What our own kernels run on."""

from __future__ import annotations

from chunkbench.kernels import cpu
from chunkbench.kernels.cpu.decode import chosen_isa
from chunkbench.kernels.triton import capability


def instruction_set(device: str) -> str | None:
    """The CPU's instruction set in use, None without a native module; `sm_90` and the like of a GPU."""
    if device == "cuda":
        return f"sm_{capability()}"
    return chosen_isa() if cpu.native() is not None else None
