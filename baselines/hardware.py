"""Where this project's own kernels run, and the instruction set that they use."""

from __future__ import annotations

import torch

from chunkbench.bench.contract import YES, Answer, Implementation
from chunkbench.kernels import cpu, triton
from chunkbench.kernels.cpu.decode import chosen_isa
from chunkbench.kernels.triton import capability
from chunkbench.kernels.triton.tuning import nearest, read
from chunkbench.version import __version__


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


class OwnKernels(Implementation):
    """An implementation that runs this project's own kernels: the native ones on a CPU, Triton's on a GPU."""

    _device = "cpu"

    def availability(self, device: str) -> Answer:
        self._device = device
        missing = cpu.why_missing() if device == "cpu" else triton.why_unavailable(torch.device(device))
        return Answer(False, missing) if missing else YES

    def package_version(self) -> str:
        return f"chunkbench {__version__}"

    def isa(self) -> str | None:
        return instruction_set(self._device)
