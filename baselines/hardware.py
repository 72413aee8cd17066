"""The instruction set that this project's own kernels use."""

from __future__ import annotations

from chunkbench.kernels import cpu
from chunkbench.kernels.cpu.decode import chosen_isa
from chunkbench.kernels.triton import capability
from chunkbench.kernels.triton.tuning import nearest, read


def instruction_set(device: str) -> str | None:
    """The instruction set that the kernels use on a device. For a GPU, it is a text such as `sm_90`. For a CPU without
    the native module, it is None.

    If the tuning table has no row for the machine's GPU, the text also names the row that is used instead. `chunkbench
    tune` makes a row for the machine's GPU.
    """
    if device == "cuda":
        own, row = f"sm_{capability()}", nearest(capability(), read())
        return own if row in (own, None) else f"{own} (sizes of {row})"
    return chosen_isa() if cpu.native() is not None else None
