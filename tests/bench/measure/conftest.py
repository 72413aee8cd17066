"""A fake device that only keeps a log of events, sessions that write into that log, and a heap without collections."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
import torch

from chunkbench.bench.contract import Session
from chunkbench.bench.measure.gpu_loop import Call, CaptureError


@pytest.fixture(scope="module", autouse=True)
def freeze_heap() -> Iterator[None]:
    """Like a worker, exclude existing objects from the garbage collections before rounds: pytest's heap is large."""
    gc.freeze()
    yield
    gc.unfreeze()


@dataclass
class FakeDevice:
    """Its clock advances by `us` at every decode call, and by nothing else, not even a stall."""

    us: float = 10.0
    now: float = 0.0
    log: list[tuple[str, object]] = field(default_factory=list)
    refuses: Callable[[], bool] = lambda: False
    stale: bool = False
    """Whether replays do nothing, like those of a graph that captured nothing."""

    def synchronise(self) -> None:
        self.log.append(("synchronise", None))

    def mark(self) -> float:
        self.log.append(("mark", self.now))
        return self.now

    def elapsed_us(self, start: float, end: float) -> float:
        return max(end - start, 1.0)  # real sessions do not advance this clock

    def stall(self, us: float) -> None:
        self.log.append(("stall", us))

    def capture(self, spans: Sequence[Sequence[Call]]) -> list[Call]:
        if self.refuses():
            raise CaptureError("its decode cannot be captured in a CUDA graph: it reads a length")
        for span in spans:
            for call in span:
                call()
        self.log.append(("capture", len(spans)))
        return [lambda span=span: self.replay(span) for span in spans]

    def replay(self, span: Sequence[Call]) -> None:
        self.log.append(("replay", len(span)))
        for call in () if self.stale else span:
            call()


class FakeSession(Session):
    """Writes twice the query into out, and logs the number of the copy and the query."""

    def __init__(self, number: int, device: FakeDevice) -> None:
        self.number, self.device, self.held = number, device, 0

    def append(self, token_ids: Sequence[int], k: torch.Tensor, v: torch.Tensor) -> None:
        self.held += 1
        self.device.log.append(("append", self.number))

    def plan(self) -> None:
        self.device.log.append(("plan", self.number))

    def decode(self, q: torch.Tensor, out: torch.Tensor) -> None:
        torch.mul(q, 2, out=out)
        self.device.now += self.device.us
        self.device.log.append(("decode", (self.number, self.held, float(q[0]))))

    def rewind(self) -> None:
        self.held = 0

    def kv_bytes(self) -> int:
        return 0


class FakeFeed:
    """Gives different queries for different purposes."""

    def completion(self, step: int) -> tuple[Sequence[int], torch.Tensor, torch.Tensor]:
        return [step], torch.zeros(1), torch.zeros(1)

    def queries(self, *purpose: int) -> torch.Tensor:
        return torch.tensor([float(hash(purpose) % (1 << 23))])
