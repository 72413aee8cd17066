"""Schemes of other libraries: PyTorch's private ring, ring-attention-pytorch, and PyTorch's attention in one
process.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from chunkbench.kernels.integers import Ints
from chunkbench.workloads.ring.blocks import flash
from chunkbench.workloads.ring.placement import Scheme, positions
from chunkbench.workloads.ring.task import ContextInputs, Task
from chunkbench.workloads.ring.world import World

Call = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
_BUCKET = 1024
"""Largest number of rows and keys that ring-attention-pytorch multiplies at once. This is its default."""


class PeerSession:
    """A session that calls another library. The call gets q, K and V as `[1, h, n, d]` and returns `[1, h, rows, d]`.
    With `tokens_first`, heads and tokens change places.
    """

    def __init__(
        self, world: World, inputs: ContextInputs, rows: Ints, tokens: Ints, call: Call, tokens_first: bool = False
    ) -> None:
        def laid_out(part: torch.Tensor) -> torch.Tensor:
            return part[None] if tokens_first else part.transpose(0, 1)[None].contiguous()

        self.rows, self._world, self._call, self._tokens_first = rows, world, call, tokens_first
        self._kv = [laid_out(part) for part in inputs.keys_values(tokens)]
        self._q = laid_out(inputs.queries(rows))
        self.out = torch.full(inputs.queries(rows[:0]).shape, torch.nan)

    def restore(self) -> None:
        return

    def run(self) -> None:
        if not len(self.rows):
            return
        with torch.no_grad(), self._world.span("compute"):
            out = self._call(self._q, *self._kv)[0]
        self.out = out if self._tokens_first else out.transpose(0, 1)


class Peer(NamedTuple):
    """How to open a session of another library, and the module that the session needs."""

    open: Callable[[World, Scheme, Task, ContextInputs], PeerSession]
    module: str = "torch"
    install: str = ""

    def missing(self) -> str:
        """How to install the missing module. Empty if it is installed."""
        return "" if importlib.util.find_spec(self.module) else self.install


def _sdpa(world: World, scheme: Scheme, task: Task, inputs: ContextInputs) -> PeerSession:
    tokens = np.arange(task.tokens if world.rank == 0 else 0)
    grouped = task.heads != task.kv_heads

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=task.causal, enable_gqa=grouped)

    return PeerSession(world, inputs, tokens, tokens, call)


def _torch_ring(world: World, scheme: Scheme, task: Task, inputs: ContextInputs) -> PeerSession:
    """Open a session of `_templated_ring_attention`. The zigzag layout turns on its load balance; `scheme.movement`
    says whether K and V travel or are gathered.
    """
    import torch.distributed as dist
    from torch.distributed.tensor.experimental import _attention
    from torch.distributed.tensor.experimental._context_parallel import _attention as ring

    _attention.set_rotate_method("alltoall" if scheme.movement == "ring" else "allgather")
    ring._cp_options.enable_load_balance = task.causal and scheme.layout == "zigzag"
    group = dist.distributed_c10d._get_default_group()
    tokens = positions(scheme.layout, task.tokens, world.size, world.rank)

    def operator(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool) -> Any:
        return flash(q, k, v, is_causal)

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return ring._templated_ring_attention(group, 2, operator, q, k, v, is_causal=task.causal)[0]  # type: ignore[arg-type]

    return PeerSession(world, inputs, tokens, tokens, call)


def _pytorch_ring(world: World, scheme: Scheme, task: Task, inputs: ContextInputs) -> PeerSession:
    """Open a session of `ring_flash_attn`. In the striped layout each bucket of the library is a stripe."""
    from ring_attention_pytorch.ring_flash_attention import ring_flash_attn

    each, striped = task.tokens // world.size, scheme.layout == "striped"
    bucket = min(_BUCKET, each)
    if striped:
        stripes = task.tokens // bucket
        own = np.arange(each // bucket) + world.rank * (each // bucket)
        tokens = (own[:, None] + stripes * np.arange(bucket)[None]).reshape(-1)
    else:
        tokens = positions(scheme.layout, task.tokens, world.size, world.rank)

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = ring_flash_attn(
            q, k, v, causal=task.causal, bucket_size=bucket, ring_reduce_col=True, striped_ring_attn=striped
        )
        return out

    return PeerSession(world, inputs, tokens, tokens, call, tokens_first=True)


def _pytorch_tree(world: World, scheme: Scheme, task: Task, inputs: ContextInputs) -> PeerSession:
    """Open a session of `tree_attn_decode`. The sequences share K and V, which are in memory once."""
    from ring_attention_pytorch.tree_attn_decoding import tree_attn_decode

    part = task.shared // world.size

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        rows = q.transpose(1, 2).transpose(0, 1)  # [b, h, 1, d]
        k, v = (part.expand(len(rows), -1, -1, -1) for part in (k, v))
        out: torch.Tensor = tree_attn_decode(rows.transpose(1, 2), k, v, shard_kv_seq=False)
        return out.transpose(0, 2)

    return PeerSession(world, inputs, np.arange(task.sequences), np.arange(part) + world.rank * part, call)


_PYTORCH = ("ring_attention_pytorch", "ring-attention-pytorch is not installed: pip install 'chunkbench[ring]'")
PEERS: Mapping[str, Peer] = {
    "sdpa": Peer(_sdpa),
    "torch-ring": Peer(_torch_ring),
    "pytorch-ring": Peer(_pytorch_ring, *_PYTORCH),
    "pytorch-tree": Peer(_pytorch_tree, *_PYTORCH),
}
"""`kernel` of a scheme -> the other library that computes it."""
