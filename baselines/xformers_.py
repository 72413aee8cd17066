"""The library `xformers`: memory-efficient attention (section 4.1 of the paper).

The library has several forward operators. Some of them need the library's extension module, which does not load with
every PyTorch. The library's dispatcher chooses an operator for training and prefill. This adapter instead uses one
operator for all points: the first in `PREFERRED` that this GPU supports. Results name this operator. If the
operator refuses a point, the point is unsupported, even if another operator would accept the point.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from chunkbench.baselines import on_gpu
from chunkbench.baselines.dense import DenseSession
from chunkbench.bench.contract import YES, Answer, Implementation, Inputs, Session
from chunkbench.bench.experiment.point import AttentionPoint

PREFERRED = ("triton_splitKF", "fa3F_splitKV", "fa3F", "fa2F", "cutlassF")
"""Prefixes of operator names, in order of preference. The first two operators split the context of a sequence over the
GPU, which makes decoding fast."""


def library() -> Any:
    """The parts of the library that this adapter uses, imported at their first use."""
    from xformers.ops import memory_efficient_attention_forward
    from xformers.ops.fmha import Inputs as FmhaInputs
    from xformers.ops.fmha import cutlass, flash, flash3, triton_splitk

    operators = [triton_splitk.FwOp, flash3.FwOp, flash.FwOp, cutlass.FwOp]
    split = getattr(flash3, "FwOp_KVSplit", None)
    return SimpleNamespace(
        forward=memory_efficient_attention_forward,
        inputs=FmhaInputs,
        operators=operators if split is None else [*operators, split],
    )


def operator(library: Any, q: torch.Tensor, k: torch.Tensor) -> Any:
    """The first usable operator in the order of `PREFERRED`, for q `[b, 1, ...]` and K and V with the shape of k `[b,
    n, ...]`. None if no operator accepts them."""
    usable = [op for op in library.operators if not op.not_supported_reasons(library.inputs(q, k, k))]
    ranked = [(rank, op) for op in usable for rank, name in enumerate(PREFERRED) if op.NAME.startswith(name)]
    return min(ranked, key=lambda pair: pair[0])[1] if ranked else None


def grouped(x: torch.Tensor, group: int) -> torch.Tensor:
    """View K or V `[b, n, kv_heads, d]` as `[b, n, kv_heads, group, d]`. Every head is repeated without a copy."""
    return x[:, :, :, None].expand(-1, -1, -1, group, -1)


class XformersSession(DenseSession):
    """A session with K and V in the library's layout `[b, capacity, kv_heads, d]`. The heads of a group get their own
    axis."""

    def __init__(self, inputs: Inputs, operator: Any) -> None:
        super().__init__(inputs, token_major=True)
        self._group = inputs.point.heads // inputs.point.kv_heads
        self._forward = library().forward
        self._operator = operator

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        q = q[:, None]
        k, v = self._k[:, : self._longest], self._v[:, : self._longest]
        if self._group > 1:
            q = q.unflatten(2, (-1, self._group))
            k, v = grouped(k, self._group), grouped(v, self._group)
        result = self._forward(q, k, v, op=self._operator)
        out.view(result.shape).copy_(result)


class Xformers(Implementation):
    def __init__(self) -> None:
        self._operator: Any = None

    def availability(self, device: str) -> Answer:
        if device == "cpu":
            return Answer(False, "xformers has no CPU operator", on_gpu.GPU_REMEDY)
        answer = on_gpu.gpu_library(device, "xformers", on_gpu.extra("xformers"), library)
        if answer.ok and self._chosen() is None:
            first = library().operators[0]
            q, k = _smallest()
            why = f"{first.NAME}: {'; '.join(first.not_supported_reasons(library().inputs(q, k, k)))}"
            return Answer(False, f"no operator of xformers runs here: {why}", "install a build for this PyTorch")
        return answer

    def supports(self, point: AttentionPoint) -> Answer:
        if not isinstance(point.n_p, int):
            return Answer(False, "ragged prompts do not fit the paper's dense layout, which this adapter uses")
        if point.device == "cuda" and torch.cuda.is_available():
            chosen = self._chosen()
            reasons = chosen.not_supported_reasons(library().inputs(*_small(point)))
            if reasons:
                return Answer(False, f"{chosen.NAME} of xformers: {'; '.join(reasons)}")
        return YES

    def prepare(self, inputs: Inputs) -> Session:
        return XformersSession(inputs, self._chosen())

    def package_version(self) -> str:
        chosen = self._chosen() if torch.cuda.is_available() else None
        return on_gpu.named("xformers") + (f" ({chosen.NAME})" if chosen is not None else "")

    def _chosen(self) -> Any:
        if self._operator is None:
            self._operator = operator(library(), *_smallest())
        return self._operator


def _smallest() -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor q, and one for both K and V, of a shape and dtype that every operator accepts."""
    q = torch.empty((1, 1, 1, 128), dtype=torch.float16, device="cuda")
    k = torch.empty((1, 32, 1, 128), dtype=q.dtype, device=q.device)
    return q, k


def _small(point: AttentionPoint) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v of a small call with the point's dtype and head shape, to ask the operator whether it accepts them."""
    group, dtype = point.heads // point.kv_heads, getattr(torch, point.dtype)
    q = torch.empty((1, 1, point.kv_heads, group, point.head_dim), dtype=dtype, device=point.device)
    k = torch.empty((1, 32, point.kv_heads, point.head_dim), dtype=dtype, device=point.device)
    return (q[:, :, :, 0], k, k) if group == 1 else (q, grouped(k, group), grouped(k, group))
