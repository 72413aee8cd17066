"""Sessions that compute attention over a context that several ranks hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from chunkbench.kernels.cpu import why_missing
from chunkbench.kernels.integers import Ints
from chunkbench.workloads.ring.blocks import BlockKernel, FlashBlocks, NativeBlocks
from chunkbench.workloads.ring.peers import PEERS
from chunkbench.workloads.ring.placement import Scheme, positions, visible
from chunkbench.workloads.ring.running import Running
from chunkbench.workloads.ring.task import ContextInputs, Task
from chunkbench.workloads.ring.world import World


def missing(scheme: Scheme) -> str:
    """How to install the module that a scheme needs. Empty if it is installed, or if the scheme needs none."""
    if scheme.kernel == "native":
        return why_missing()
    return PEERS[scheme.kernel].missing() if scheme.kernel in PEERS else ""


class Session(Protocol):
    """A rank's share of a task, ready to run."""

    rows: Ints
    """The rows whose attention this rank has after a run (see `Task.context`)."""
    out: torch.Tensor
    """Attention of these rows, `[rows, h, d]`."""

    def restore(self) -> None:
        """Restore the data that `run` overwrites. Not timed."""
        ...

    def run(self) -> None:
        """Compute the attention once. All ranks call this at the same time."""
        ...


def kernel_of(scheme: Scheme, task: Task, device: str) -> BlockKernel:
    """The block kernel of a scheme."""
    return FlashBlocks(task.shape, device) if scheme.kernel == "flash" else NativeBlocks(task.shape)


class PrefillSession:
    """Prefill on a rank. It holds the rank's queries, and blocks of K and V. If K and V travel, the rank's own block is
    overwritten.
    """

    def __init__(self, world: World, scheme: Scheme, task: Task, inputs: ContextInputs) -> None:
        ranks = scheme.ranks or world.size
        self._world, self._ranks, self._task = world, ranks, task
        self._movement, self._kernel = scheme.movement, kernel_of(scheme, task, world.device)
        self._held = [positions(scheme.layout, task.tokens, ranks, rank) for rank in range(ranks)]
        self.rows = self._held[world.rank] if world.rank < ranks else np.arange(0)
        self._q = inputs.queries(self.rows)
        self._running = Running(len(self.rows), task.heads, task.head_dim, world.device)
        self.out = self._running.outputs
        self._blocks = [self._kernel.block(len(self._held[0])) for _ in range(self._buffers)]
        self._inputs = inputs
        self._filled = False

    @property
    def _buffers(self) -> int:
        if self._world.rank >= self._ranks:
            return 0
        return 2 if self._movement == "ring" and self._ranks > 1 else self._ranks

    def restore(self) -> None:
        if self._filled and self._movement != "ring":
            return
        own = {"ring": {0: self._world.rank}, "gather": {self._world.rank: self._world.rank}}
        places = own.get(self._movement, dict(enumerate(range(self._ranks))))
        for place, source in places.items() if self._blocks else ():
            self._kernel.fill(self._blocks[place], *self._inputs.keys_values(self._held[source]))
        self._filled = True

    def run(self) -> None:
        if not self._blocks:
            return
        world, rank = self._world, self._world.rank
        self._running.reset()
        if self._movement == "gather":
            world.all_gather(self._blocks)
        for step in range(self._ranks):
            source = (rank - step) % self._ranks
            block = self._blocks[step % 2 if self._movement == "ring" else source]
            travels = self._movement == "ring" and step + 1 < self._ranks
            transfer = world.exchange(block, self._blocks[(step + 1) % 2]) if travels else None
            with world.span("compute"):
                seen = visible(self.rows, self._held[source], self._task.causal)
                self._kernel.add(self._q, block, len(self._held[source]), seen, self._running)
                if step + 1 == self._ranks:
                    self._running.finish()
            if transfer is not None:
                transfer.wait()


class DecodeSession:
    """A decode step in two phases. The shared tokens are split into one part per rank. The other tokens of a sequence
    stay on one rank.

    If the scheme merges partial results, every rank computes all sequences over its part of the shared tokens.
    Otherwise each sequence is computed by one rank over all its tokens, and the outputs are gathered. In the end every
    rank has all outputs.
    """

    def __init__(self, world: World, scheme: Scheme, task: Task, inputs: ContextInputs) -> None:
        ranks = scheme.ranks or world.size
        self._world, self._ranks, self._task, self._movement = world, ranks, task, scheme.movement
        self._kernel = NativeBlocks(task.shape)
        self._computes = world.rank < ranks
        self.rows = np.arange(task.sequences if self._computes else 0)
        self._mine = task.rows(ranks, world.rank) if self._computes else self.rows
        self._merges = scheme.movement == "merge"
        self._q = inputs.queries(self.rows if self._merges else self._mine)
        self._running = Running(len(self._q), task.heads, task.head_dim)
        self._part = task.shared // ranks
        held = range(ranks) if scheme.movement == "none" else [world.rank]
        places = range(ranks) if scheme.movement in ("none", "gather") else [world.rank]
        self._blocks = {place: self._kernel.block(self._part) for place in (places if self._computes else ())}
        for place in set(held) & set(self._blocks):
            tokens = np.arange(self._part) + place * self._part
            self._kernel.fill(self._blocks[place], *inputs.keys_values(tokens))
        travels = scheme.movement == "ring" and ranks > 1
        self._incoming = [self._kernel.block(self._part) for _ in range(2 if travels else 0)]
        sequences = [inputs.keys_values(task.context(int(row))[task.shared :]) for row in self._mine]
        self._suffixes = self._kernel.sequences(sequences) if task.own and sequences else None
        most = -(-task.sequences // ranks)
        gathered = torch.full((ranks * most, task.heads, task.head_dim), torch.nan)
        self._outputs = list(gathered.split(most))
        self.out = self._running.outputs if self._merges else gathered[: len(self.rows)]

    def restore(self) -> None:
        return

    def run(self) -> None:
        if not self._computes:
            return
        world = self._world
        self._running.reset()
        if self._movement == "gather":
            world.all_gather(list(self._blocks.values()))
        if self._suffixes is not None:
            with world.span("compute"):
                rows = self._mine if self._merges else np.arange(len(self._mine))
                self._kernel.add_sequences(self._q, self._suffixes, self._task.own, rows, self._running)
        if self._movement == "ring":
            self._travel()
        else:
            for block in self._blocks.values():
                self._add(block)
        if self._merges:
            world.merge(self._running)
            self._running.finish()
        else:
            self._outputs[world.rank][: len(self._mine)] = self._running.finish()
            if self._ranks > 1:
                world.all_gather(self._outputs)

    def _add(self, block: torch.Tensor) -> None:
        with self._world.span("compute"):
            self._kernel.add(self._q, block, self._part, np.full(len(self._q), self._part), self._running)

    def _travel(self) -> None:
        block = self._blocks[self._world.rank]
        for step in range(self._ranks):
            travels = step + 1 < self._ranks
            transfer = self._world.exchange(block, self._incoming[step % 2]) if travels else None
            self._add(block)
            if transfer is not None:
                transfer.wait()
                block = self._incoming[step % 2]


Opener = Callable[[World, Scheme, Task, ContextInputs], Session]


def open_session(world: World, scheme: Scheme, task: Task, inputs: ContextInputs) -> Session:
    """Open a session for this rank's share of a task."""
    if scheme.kernel in PEERS:
        return PEERS[scheme.kernel].open(world, scheme, task, inputs)
    kind: Opener = PrefillSession if task.phase == "prefill" else DecodeSession
    return kind(world, scheme, task, inputs)
