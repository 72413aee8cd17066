"""ChunkAttn: prefix-aware KV cache with the two-phase partition kernel (section 3 of the paper), and its ablations."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch

from chunkbench.attention import ChunkAttention, Kernel, Partition
from chunkbench.attention.tree import PrefixTree
from chunkbench.attention.windows import HeadPolicy
from chunkbench.baselines.hardware import OwnKernels
from chunkbench.bench.contract import YES, Answer, Inputs, Session
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.draft import parents_of
from chunkbench.kernels import cpu, triton
from chunkbench.kernels.query_rows import QueryRows
from chunkbench.kernels.trace import Trace, TracedCall
from chunkbench.kv_dtype import KV_DTYPES


class ChunkAttnSession(Session):
    def __init__(
        self,
        inputs: Inputs,
        chunk_size: int,
        partition: Partition,
        kernel: Kernel,
        share: bool = True,
        policy: HeadPolicy | None = None,
    ) -> None:
        point = inputs.point
        self.attention = ChunkAttention(
            heads=point.heads,
            head_dim=point.head_dim,
            kv_heads=point.kv_heads,
            chunk_size=chunk_size,
            dtype=getattr(torch, point.dtype),
            device=point.device,
            partition=partition,
            kernel=kernel,
            share=share,
            policy=policy,
            kv_dtype=point.kv_dtype,
        )
        several = point.query_rows > 1
        rows = QueryRows.alike(point.batch_size, point.query_rows, parents_of(point.draft)) if several else None
        self.query_rows = rows
        self.attention.reserve(chunks_needed(inputs, chunk_size, share) * chunk_size)
        self._add_prompts(inputs)

    def _add_prompts(self, inputs: Inputs) -> None:
        self._sequences = []
        for row, prompt in enumerate(inputs.prompts):
            cached = self.attention.cached_tokens(prompt)
            k, v = inputs.keys_values(row, cached, len(prompt))
            self._sequences.append((self.attention.add_sequence(prompt, k, v), len(prompt)))

    def append(self, token_ids: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> None:
        self.attention.append(token_ids, k, v)

    def plan(self) -> None:
        self.attention.plan(self.query_rows)

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        self.attention.decode(q, out)

    def rewind(self) -> None:
        for sequence, length in self._sequences:
            self.attention.truncate(sequence, length)

    def kv_bytes(self) -> int:
        return self.attention.kv_bytes

    def work_items(self) -> int:
        return self.attention.work_items

    def trace(self, q: torch.Tensor, out: torch.Tensor, call: TracedCall) -> Trace | None:
        return self.attention.trace(q, out, call)


def chunks_needed(inputs: Inputs, chunk_size: int, share: bool = True) -> int:
    """Number of chunks that the prompts and all completion tokens need, so that memory is allocated only once."""
    tree = PrefixTree(chunk_size, share=share)
    for prompt in inputs.prompts:
        tree.join(prompt)
    return tree.pool.in_use + inputs.point.batch_size * -(-inputs.point.n_c // chunk_size)


_OPEN: WeakKeyDictionary[Inputs, ReferenceType[ChunkAttnSession]] = WeakKeyDictionary()


def open_session(inputs: Inputs) -> ChunkAttnSession:
    """Return `chunk_attn`'s open session for these inputs, or open a new one. CPU only. Sessions of other planners read
    the K and V of this session."""
    reference = _OPEN.get(inputs)
    session = None if reference is None else reference()
    if session is None:
        session = ChunkAttnSession(inputs, inputs.point.chunk_size, "two-phase", "auto")
        _OPEN[inputs] = ref(session)
    return session


class ChunkAttn(OwnKernels):
    """The paper's algorithm. If `reads_shared_once` is false, its kernel leaves out the chunk-first phase: every
    sequence reads its shared chunks by itself."""

    shares_storage = True
    reads_shared_once = True
    kernel: Kernel = "auto"
    kv_dtypes = KV_DTYPES
    drafts = "trees"

    def __init__(self) -> None:
        if self.kernel == "auto" and cpu.native() is None:
            self.note = f"{self.label} runs its PyTorch kernel here: {cpu.why_missing()}"

    def availability(self, device: str) -> Answer:
        self._device = device
        if self.kernel == "auto" and device == "cuda":
            self.note = ""  # the GPU kernel does not need the native module
            missing = triton.why_unavailable(torch.device(device))
            if missing:
                return Answer(False, f"the GPU kernel cannot run: {missing}", "chunk_attn_torch runs without it")
        return YES

    def supports(self, point: AttentionPoint) -> Answer:
        if point.query_rows > 1 and self.kernel != "auto":
            return Answer(False, f"kernel={self.kernel} takes one query row of a sequence", "chunk_attn takes several")
        if point.query_rows > 1 and point.device == "cpu":
            missing = cpu.why_not(point.head_dim, point.chunk_size) or cpu.why_missing()
            if missing:
                return Answer(False, f"only the native kernel takes several query rows: {missing}")
        if self.kernel == "auto" and point.device == "cuda":
            dtype = getattr(torch, point.dtype)
            unfit = triton.why_not(dtype, point.heads, point.kv_heads, point.head_dim, point.chunk_size)
            if unfit:
                return Answer(False, f"the GPU kernel cannot compute this: {unfit}", "chunk_attn_torch can")
        return YES

    def prepare(self, inputs: Inputs) -> Session:
        if self.reads_shared_once and self.kernel == "auto" and inputs.point.device == "cpu":
            return open_session(inputs)
        partition: Partition = "two-phase" if self.reads_shared_once else "sequence-first"
        return ChunkAttnSession(inputs, inputs.point.chunk_size, partition, self.kernel)

    def isa(self) -> str | None:
        return super().isa() if self.kernel == "auto" else None
