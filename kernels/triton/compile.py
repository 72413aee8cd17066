"""Compiles the kernels for a GPU generation, even without such a GPU, and reports the resources that they use.

TRITON_INTERPRET must not be set when this module is imported: interpreted kernels cannot be compiled.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from chunkbench.draft import Drafts
from chunkbench.kernels.triton import attention, constants
from chunkbench.kernels.triton.tuning import Tuning

SHARED_BYTES = {80: 167936, 86: 102400, 90: 233472, 120: 102400}
"""Compute capability -> bytes of shared memory of a multiprocessor. A value also holds for later capabilities, up to
the next key. The system reserves 1 KB of it per block."""
REGISTERS = 65536
_DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
_POINTERS = {
    "i64": ("key_places", "value_places", "tail_keys", "tail_values"),
    "i32": ("items", "order", "rows", "folds", "tokens", "reads", "hidden", "lost"),
    "fp32": ("partial_out", "partial_lse", "row_lse", "shares", "biases", "sums"),
    "data": ("q", "out", "k", "v"),
    "kv": ("keys", "values"),
}


class Built(NamedTuple):
    """Resources of one block of a compiled kernel."""

    kernel: str
    """Name of the kernel. `partial_results wide` uses the large tile, `partial_results narrow` only the small one."""
    registers: int
    """Registers per thread."""
    stack_bytes: int
    """Bytes per thread that are spilled to memory."""
    shared_bytes: int
    warps: int
    asynchronous_loads: int
    """Number of asynchronous 16-byte copies to shared memory in the program."""
    ahead: int
    """Number of tiles that shared memory holds at a time. If the numbers for K and V differ, this is the smaller
    number."""

    def blocks(self, generation: int) -> int:
        """Blocks that a multiprocessor runs at the same time."""
        registers_of_warp = -(-self.registers * 32 // 256) * 256
        listed = [older for older in SHARED_BYTES if older <= generation]
        shared = SHARED_BYTES[max(listed)] // (self.shared_bytes + 1024)
        return min(shared, REGISTERS // (registers_of_warp * self.warps))


def build(
    generation: int, sizes: constants.Sizes, tuning: Tuning, drafts: Drafts = "none", compensated: bool = False
) -> list[Built]:
    """All kernels of one shape, for compute capability `generation` (90 for 9.0) and queries in 16 bits. `compensated`:
    whether rows have compensation tokens."""
    dtype = _DTYPES[sizes.dtype]
    stored, sizes = sizes, sizes.for_heads(sizes.heads, tuning.wide)
    overlap = constants.overlaps(generation)
    merge_warps = constants.merge_warps(sizes, tuning)
    sights = {"DRAFTS": constants.DRAFTS.index(drafts), "LSE": sizes.rope > 0}
    merge = constants.merge_rows(sizes, tuning, overlap) | sights | {"COMPENSATED": compensated}
    wide, narrow = (constants.partial_results(sizes, tuning, wide, overlap) | sights for wide in (True, False))
    needs_wide = constants.narrow(sizes.group) < tuning.wide
    return [
        *([_build("partial_results", wide, generation, dtype, tuning.warps, " wide")] if needs_wide else []),
        _build("partial_results", narrow, generation, dtype, tuning.warps, " narrow"),
        _build("merge_rows", merge, generation, dtype, merge_warps),
        _build("append_tokens", constants.append_tokens(stored) | {"COUNTED": False}, generation, dtype, 4),
    ]


def _build(name: str, constants: dict[str, Any], generation: int, dtype: str, warps: int, variant: str = "") -> Built:
    kernel = getattr(attention, name)
    kv = (dtype, "i8", "u8", "u8")[constants["FORM"]]
    of_kind = {"data": dtype, "kv": kv}
    types = {name: f"*{of_kind.get(kind, kind)}" for kind, names in _POINTERS.items() for name in names}
    types |= {"scale": "fp32"} | dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, "i32") for name in kernel.arg_names}
    # A launch detects these properties itself: aligned tensors, and strides of q and out that are multiples of 16.
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or kind == "i32"
    }
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, places, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", generation, 32), options={"num_warps": warps})
    registers, stack = _resources(compiled.asm["cubin"])
    loads = len(re.findall(r"cp\.async\.cg[^;]*0x10", compiled.asm["ptx"]))
    tiles = re.findall(r"ttg\.local_alloc : \(\) -> !ttg\.memdesc<(\d+)x\d+x\d+xb?f16", compiled.asm["ttgir"])
    return Built(
        name + variant, registers, stack, compiled.metadata.shared, warps, loads, min(map(int, tiles), default=0)
    )


def _resources(cubin: bytes) -> tuple[int, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    match = re.search(r"REG:(\d+) STACK:(\d+)", output)
    if match is None:
        raise RuntimeError(f"cuobjdump does not report the registers: {output.strip()}")
    return int(match[1]), int(match[2])
