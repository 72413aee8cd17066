"""xformers: memory-efficient attention (section 4.1 of the paper). The library has the file's name without the `_`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

import torch

from chunkbench.baselines.contract import YES, Answer, Implementation, Inputs, Session
from chunkbench.experiment.point import Point


def _installed() -> str | None:
    try:
        return version("xformers")
    except PackageNotFoundError:
        return None


class XformersSession(Session):
    """K and V as `[b, capacity, heads, d]`, the layout of the library."""

    def __init__(self, inputs: Inputs) -> None:
        from xformers.ops import memory_efficient_attention

        point = inputs.point
        self._attention: Callable[..., torch.Tensor] = memory_efficient_attention
        first, _ = inputs.keys_values(0, 0, 1)
        shape = (point.batch_size, inputs.capacity, point.kv_heads, point.head_dim)
        self._k, self._v = first.new_empty(shape), first.new_empty(shape)
        self._prompt = len(inputs.prompts[0])
        for row in range(point.batch_size):
            k, v = inputs.keys_values(row, 0, self._prompt)
            self._k[row, : self._prompt], self._v[row, : self._prompt] = k, v
        self._length = self._prompt

    def append(self, token_ids: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> None:
        self._k[:, self._length], self._v[:, self._length] = k, v
        self._length += 1

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(self._attention(q[:, None], self._k[:, : self._length], self._v[:, : self._length])[:, 0])

    def rewind(self) -> None:
        self._length = self._prompt

    def kv_bytes(self) -> int:
        return self._k.nbytes + self._v.nbytes


class Xformers(Implementation):
    id = "xformers"
    label = "xformers"

    def availability(self, device: str) -> Answer:
        if device == "cpu":
            return Answer(False, "xformers has no CPU operator", "run on an NVIDIA GPU (device: cuda)")
        if _installed() is None:
            return Answer(False, "the package xformers is not installed", "pip install 'chunkbench[xformers]'")
        return YES

    def supports(self, point: Point) -> Answer:
        if point.kv_heads != point.heads:
            return Answer(False, "grouped heads would need copies of K and V in memory_efficient_attention")
        if not isinstance(point.n_p, int):
            return Answer(False, "ragged prompts need another layout than the dense one of the paper")
        return YES

    def prepare(self, inputs: Inputs) -> Session:
        return XformersSession(inputs)

    def package_version(self) -> str | None:
        return f"xformers {_installed()}"
