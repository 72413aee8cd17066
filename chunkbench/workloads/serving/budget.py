"""What fits into the budget of a run on servers: the seconds that its parts take, and what is cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from chunkbench.workloads.serving.result import ServingPoint

FEWEST_REQUESTS = 8
"""Requests of an arrival seed that a comparison needs, in proportion more above a load of 100."""
FEWEST_SEEDS = 2
"""Arrival seeds that a comparison needs."""
_SHARES = 64
"""Steps in which requests are cut."""


class Cut(NamedTuple):
    """What is measured of a part. No arrival seed: nothing."""

    requests: int
    """Of an arrival seed."""
    seeds: int


@dataclass(frozen=True)
class Part:
    """What is left to measure of a point with the systems that take turns there. Seconds of all of them together."""

    requests: int
    """Of an arrival seed, as the experiment asks."""
    fewest_requests: int
    seeds: int
    fewest_seeds: int
    once_s: float
    """Starts of servers and the capacity of the reference."""
    seed_s: float
    """What an arrival seed takes, however few its requests are."""
    request_s: float
    """What each request of an arrival seed adds."""

    def seconds(self, cut: Cut) -> float:
        """What the part takes after this cut."""
        return self.once_s + cut.seeds * (self.seed_s + cut.requests * self.request_s) if cut.seeds else 0.0

    def cut(self, share: float, fewer_seeds: int) -> Cut:
        """This share of the requests above the fewest, and so many seeds fewer, not below the fewest."""
        requests = self.fewest_requests + int(share * (self.requests - self.fewest_requests))
        return Cut(requests, max(self.fewest_seeds, self.seeds - fewer_seeds))


def fit(parts: Sequence[Part], left_s: float) -> list[Cut]:
    """[part] what is measured of it in `left_s` seconds.

    Requests are cut first, in all parts alike; at the fewest requests, arrival seeds; at the fewest seeds, whole parts
    from the last on.
    """
    most = max((part.seeds - part.fewest_seeds for part in parts), default=0)
    for kept in range(len(parts), 0, -1):
        for fewer in range(most + 1):
            for step in range(_SHARES, -1, -1):
                cuts = [part.cut(step / _SHARES, fewer) for part in parts[:kept]]
                if took_s(parts, cuts) <= left_s:
                    return cuts + [Cut(0, 0)] * (len(parts) - kept)
    return [Cut(0, 0)] * len(parts)


def took_s(parts: Iterable[Part], cuts: Iterable[Cut]) -> float:
    """Seconds of all parts after these cuts."""
    return sum(part.seconds(cut) for part, cut in zip(parts, cuts, strict=False))


class _Pace(NamedTuple):
    """A system beside the reference with closed-loop clients."""

    waits: float
    """What an arrival seed takes besides its requests, in requests of the reference."""
    stretch: float
    """What a request adds, over the time between two requests, or over one of the reference if that is longer."""


class Costs:
    """Seconds of the parts of a run: assumed at first, then measured."""

    def __init__(self, starts: Mapping[str, float], assumed: Callable[[ServingPoint], float]) -> None:
        """`starts`: system -> seconds until it is warm. `assumed`: seconds of the reference for a request of a point,
        with closed-loop clients."""
        self.starts = dict(starts)
        self._assumed = assumed
        self._capacity: dict[str, float] = {}
        self._ratio = 1.0
        """Measured over assumed seconds of a request."""
        self._paces: dict[tuple[str, ServingPoint], _Pace] = {}

    def knows(self, requests: str) -> bool:
        """Whether the capacity with these requests was measured."""
        return requests in self._capacity

    def learn_capacity(self, requests: str, point: ServingPoint, per_s: float) -> None:
        """The reference's capacity with the requests of a point was measured."""
        self._capacity[requests] = per_s
        self._ratio = 1 / per_s / self._assumed(point)

    def learn_turn(
        self, name: str, requests: str, point: ServingPoint, sent: int, last_due: float, took_s: float, fastest_s: float
    ) -> None:
        """A system answered `sent` requests in `took_s` seconds, the last due at `last_due`, one in `fastest_s`."""
        drain_s = max(0.0, took_s - last_due)
        fixed_s = min(fastest_s, drain_s)
        each_s = self.gap_s(requests, point) + (drain_s - fixed_s) / sent
        self._paces[name, point] = _Pace(fixed_s / self.one_s(requests, point), each_s / self._step_s(requests, point))

    def one_s(self, requests: str, point: ServingPoint) -> float:
        """Seconds of the reference for a request, with closed-loop clients."""
        per_s = self._capacity.get(requests)
        return 1 / per_s if per_s else self._ratio * self._assumed(point)

    def gap_s(self, requests: str, point: ServingPoint) -> float:
        """Mean seconds between two requests."""
        if point.clients:  # all are due from the beginning
            return 0.0
        return 60 / point.rate if point.rate else self.one_s(requests, point) * 100 / (point.load or 100)

    def turn(self, name: str, requests: str, point: ServingPoint) -> tuple[float, float]:
        """Seconds of an arrival seed of a system, and what each of its requests adds."""
        pace = self._pace(name, point)
        return pace.waits * self.one_s(requests, point), pace.stretch * self._step_s(requests, point)

    def _step_s(self, requests: str, point: ServingPoint) -> float:
        return max(self.gap_s(requests, point), self.one_s(requests, point))

    def _pace(self, name: str, point: ServingPoint) -> _Pace:
        """As it was at this point; else the slowest at points of this load and sharing; else anywhere; else assumed."""
        if (name, point) in self._paces:
            return self._paces[name, point]
        known = {where: pace for (system, where), pace in self._paces.items() if system == name}
        alike = [pace for where, pace in known.items() if _kind(where) == _kind(point)] or list(known.values())
        if not alike:
            return _Pace((point.clients or point.batch_size) / 2, 1.0)
        return _Pace(max(pace.waits for pace in alike), max(pace.stretch for pace in alike))


def _kind(point: ServingPoint) -> tuple[object, ...]:
    return point.load, point.rate, point.clients, bool(point.n_s)


def assumed_request_s(
    point: ServingPoint, weights: int, token_bytes: int, flops_per_s: float, bytes_per_s: float
) -> float:
    """Seconds of a server for a request of a full batch that shares nothing, from the machine's rates.

    `weights`: numbers in the model's weights; `token_bytes`: K/V of a token. Prompt tokens cost products; a step reads
    the weights once and every sequence's K/V. What real servers take besides is half of it again.
    """
    prompt_s = 2 * weights * point.n_p / flops_per_s
    batch = min(point.clients or point.batch_size, point.batch_size)
    read = weights * point.element_bytes / batch + (point.n_p + point.n_c / 2) * token_bytes
    step_s = read / bytes_per_s + 2 * weights / flops_per_s
    return 1.5 * (prompt_s + point.n_c * step_s)
