"""The modules of a decoder layer that the paper's Table 1 compares, computed by PyTorch's matrix products.

`decode` takes hidden states `[b, width]`, as wide as the widest input of a module. A module with a narrower input reads
only the leading columns. The shape of the output depends on the module.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from chunkbench.baselines.naive import NaiveSession
from chunkbench.bench.contract import YES, Answer, Implementation, Session, Style
from chunkbench.workloads.modules.inputs import ModulesInputs
from chunkbench.workloads.modules.result import LayerPoint


class _Stateless(Session):
    """A module that holds weights but no state of earlier tokens."""

    def append(self, token_ids: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> None:
        return

    def rewind(self) -> None:
        return

    def kv_bytes(self) -> int:
        return 0


class QkvProjectionSession(_Stateless):
    def __init__(self, inputs: ModulesInputs) -> None:
        self._hidden = inputs.shape.hidden_size
        self._weight = inputs.weights("qkv_projection", inputs.shape.qkv_size, self._hidden).t()

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        torch.mm(q[:, : self._hidden], self._weight, out=out)


class MlpSession(_Stateless):
    def __init__(self, inputs: ModulesInputs) -> None:
        shape = inputs.shape
        self._hidden = shape.hidden_size
        self._gate, self._up = (
            inputs.weights(name, shape.intermediate_size, shape.hidden_size).t() for name in ("gate", "up")
        )
        self._down = inputs.weights("down", shape.hidden_size, shape.intermediate_size).t()
        size = (inputs.point.batch_size, shape.intermediate_size)
        self._gated, self._upped = self._gate.new_empty(size), self._gate.new_empty(size)

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        x = q[:, : self._hidden]
        torch.mm(x, self._gate, out=self._gated)
        torch.mm(x, self._up, out=self._upped)
        torch.nn.functional.silu(self._gated, inplace=True)
        torch.mm(self._gated.mul_(self._upped), self._down, out=out)


class SelfAttentionSession(NaiveSession):
    """Attention of one new token over n_p earlier tokens and itself. Every call does the same work."""

    def __init__(self, inputs: ModulesInputs) -> None:
        super().__init__(inputs)
        point = inputs.point
        self._n_p, self._shape = point.n_p, (point.batch_size, point.heads, point.head_dim)

    def append(self, token_ids: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> None:
        if self._longest == self._n_p:
            super().append(token_ids, k, v)

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        _, h, d = self._shape
        super().decode(q[:, : h * d].contiguous().view(self._shape), out)


class _Module(Implementation[LayerPoint, ModulesInputs]):
    def availability(self, device: str) -> Answer:
        return YES

    def package_version(self) -> str:
        return f"torch {torch.__version__}"


class QkvProjection(_Module):
    id = "qkv_projection"
    label = "QKV projection"
    style = Style(heading=("QKV", "proj."), colour="#0072B2", marker="s")

    def prepare(self, inputs: ModulesInputs) -> Session:
        return QkvProjectionSession(inputs)


class SelfAttention(_Module):
    id = "self_attention"
    label = "Self-attention"
    style = Style(heading=("Self-", "attention"), colour="#D55E00", marker="o")

    def prepare(self, inputs: ModulesInputs) -> Session:
        return SelfAttentionSession(inputs)


class Mlp(_Module):
    id = "mlp"
    label = "MLP"
    style = Style(heading=("MLP",), colour="#009E73", marker="^")

    def prepare(self, inputs: ModulesInputs) -> Session:
        return MlpSession(inputs)
