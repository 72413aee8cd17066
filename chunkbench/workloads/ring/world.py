"""A rank's view of the others: collectives, a link that may be slowed down, and a record of activities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Thread
from time import perf_counter, sleep
from typing import Literal, NamedTuple

import torch
import torch.distributed as dist

from chunkbench.workloads.ring.running import Running

Doing = Literal["compute", "transfer", "wait"]


class Event(NamedTuple):
    """An activity of a rank, on the clock of `time.perf_counter`. Transfers run at the same time as other
    activities."""

    what: Doing
    start: float
    end: float


class World:
    """This rank in the default process group of `torch.distributed`. `link` is the bytes per second that a rank can
    send, or None for no limit.

    A limited transfer copies at full speed, then waits until its bytes could have passed. The bytes of collectives
    count as if they were sent around a ring.
    """

    def __init__(self, link: int | None = None, device: str = "cpu") -> None:
        self.rank, self.size, self.device = dist.get_rank(), dist.get_world_size(), device
        self._link = link
        self.events: list[Event] = []
        self.sent_bytes = 0

    @contextmanager
    def span(self, what: Doing) -> Iterator[None]:
        """Record the time of the block as an activity."""
        start = perf_counter()
        yield
        if what == "compute" and self.device == "cuda":
            torch.cuda.synchronize()
        self.events.append(Event(what, start, perf_counter()))

    def exchange(self, block: torch.Tensor, incoming: torch.Tensor) -> Transfer:
        """Start to send a block to the next rank and to receive one from the previous rank."""
        self.sent_bytes += block.nbytes
        with self.span("wait"):  # on a busy CPU, starting already copies
            return Transfer(self, block, incoming)

    def all_gather(self, blocks: Sequence[torch.Tensor]) -> None:
        """Fill `blocks`, which has one block per rank. This rank's own block must be filled already."""
        with self._collective((self.size - 1) * blocks[0].nbytes):
            dist.all_gather(list(blocks), blocks[self.rank])

    def merge(self, running: Running) -> None:
        reduced = 4 * running.outputs.numel() + 4 * running.stats.numel()
        with self._collective(2 * (self.size - 1) * reduced // self.size):
            running.merge()

    def not_before(self, start: float, sent: int) -> None:
        """If the link is limited, wait until `sent` bytes can have passed since `start`."""
        if self._link is not None:
            sleep(max(0.0, start + sent / self._link - perf_counter()))

    @contextmanager
    def _collective(self, sent: int) -> Iterator[None]:
        start = perf_counter()
        yield
        self.not_before(start, sent)
        self.sent_bytes += sent
        end = perf_counter()
        self.events += [Event("transfer", start, end), Event("wait", start, end)]


class Transfer:
    """A block on its way to the next rank, and an arriving block. A thread waits for both, to record when they end."""

    def __init__(self, world: World, block: torch.Tensor, incoming: torch.Tensor) -> None:
        self._world, self._start = world, perf_counter()
        self._error: Exception | None = None
        to, source = (world.rank + 1) % world.size, (world.rank - 1) % world.size
        parts = [dist.P2POp(dist.irecv, incoming, source), dist.P2POp(dist.isend, block, to)]
        self._works = dist.batch_isend_irecv(parts)
        self._bytes = block.nbytes
        self._thread = Thread(target=self._watch, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until both blocks have arrived. Raises the error of the transfer if it failed."""
        start = perf_counter()
        self._thread.join()
        if self._error is not None:
            raise self._error
        self._world.events.append(Event("wait", start, perf_counter()))

    def _watch(self) -> None:
        try:
            for work in self._works:
                work.wait()
            self._world.not_before(self._start, self._bytes)
        except Exception as error:
            self._error = error
        else:
            self._world.events.append(Event("transfer", self._start, perf_counter()))
