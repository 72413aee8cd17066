"""Fits a run on servers into its budget. Estimates the seconds of its parts, and leaves out requests, arrival seeds and
parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from chunkbench.workloads.serving.result import ServingPoint

FEWEST_REQUESTS = 8
"""Smallest number of requests of an arrival seed that allows a comparison. A load above 100% needs proportionally
more."""
FEWEST_SEEDS = 2
"""Smallest number of arrival seeds that allows a comparison."""
_SHARES = 64
"""`fit` goes from all requests down to the fewest in this number of equal steps."""


class Cut(NamedTuple):
    """How much of a part is measured. If `seeds` is 0, the part is left out."""

    requests: int
    """Number of requests of each arrival seed."""
    seeds: int


@dataclass(frozen=True)
class Part:
    """The work that is left at one point, for all systems that take turns there. Its seconds are sums over these
    systems."""

    requests: int
    """Number of requests of each arrival seed, as the experiment asks for."""
    fewest_requests: int
    seeds: int
    fewest_seeds: int
    once_s: float
    """Seconds to start the servers, and to measure the capacity of the reference."""
    seed_s: float
    """Seconds that an arrival seed takes in addition to its requests."""
    request_s: float
    """Seconds that one more request of an arrival seed adds."""

    def seconds(self, cut: Cut) -> float:
        """Seconds that the part takes with the requests and arrival seeds of `cut`."""
        return self.once_s + cut.seeds * (self.seed_s + cut.requests * self.request_s) if cut.seeds else 0.0

    def cut(self, share: float, fewer_seeds: int) -> Cut:
        """A smaller amount of this part, with at least the fewest requests and seeds.

        `share`: fraction to keep of the requests that exceed the fewest. `fewer_seeds`: number of seeds to leave out.
        """
        requests = self.fewest_requests + int(share * (self.requests - self.fewest_requests))
        return Cut(requests, max(self.fewest_seeds, self.seeds - fewer_seeds))


def fit(parts: Sequence[Part], left_s: float) -> list[Cut]:
    """Choose a cut for each part, so that all parts together take at most `left_s` seconds.

    First, requests are left out, the same fraction in all parts. If that is not enough, arrival seeds are left out. At
    last, whole parts are left out, the last part first.
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
    """Estimated seconds of all parts with these cuts."""
    return sum(part.seconds(cut) for part, cut in zip(parts, cuts, strict=False))


class _Pace(NamedTuple):
    """The measured pace of a system, relative to the reference with closed-loop clients."""

    waits: float
    """Time that an arrival seed takes in addition to its requests. The unit is the time of one request on the
    reference.
    """
    stretch: float
    """Time that one more request adds to a run. The unit is the time between two arrivals, or the time of one request
    on the reference if that is longer.
    """


class Costs:
    """Estimates the seconds of a run's parts. Uses measured times as soon as there are any."""

    def __init__(
        self, starts: Mapping[str, float], assumed: Callable[[ServingPoint], float], unshared: Collection[str] = ()
    ) -> None:
        """`starts`: system -> seconds until its server is ready. `assumed`: returns the seconds that a server takes for
        one request of a point, with closed-loop clients. It shares prefixes, as all systems but those in `unshared`.
        """
        self.starts = dict(starts)
        self._assumed = assumed
        self._unshared = unshared
        self._capacity: dict[str, float] = {}
        self._ratio = 1.0
        """Measured seconds of a request over the assumed ones."""
        self._paces: dict[tuple[str, ServingPoint], _Pace] = {}

    def knows(self, requests: str) -> bool:
        """Whether the capacity of the reference was measured with these requests."""
        return requests in self._capacity

    def learn_capacity(self, requests: str, point: ServingPoint, per_s: float) -> None:
        """Record the measured capacity of the reference, in requests per second."""
        self._capacity[requests] = per_s
        self._ratio = 1 / per_s / self._assumed(point)

    def learn_turn(
        self, name: str, requests: str, point: ServingPoint, sent: int, last_due: float, took_s: float, fastest_s: float
    ) -> None:
        """Record that a system answered the `sent` requests of an arrival seed.

        `took_s`: seconds of the whole turn. `last_due`: seconds from its start until the last request was due.
        `fastest_s`: seconds of the fastest request.
        """
        drain_s = max(0.0, took_s - last_due)
        fixed_s = min(fastest_s, drain_s)
        each_s = self.gap_s(requests, point) + (drain_s - fixed_s) / sent
        self._paces[name, point] = _Pace(fixed_s / self.one_s(requests, point), each_s / self._step_s(requests, point))

    def one_s(self, requests: str, point: ServingPoint) -> float:
        """Seconds that the reference takes for one request, with closed-loop clients."""
        per_s = self._capacity.get(requests)
        return 1 / per_s if per_s else self._ratio * self._assumed(point)

    def gap_s(self, requests: str, point: ServingPoint) -> float:
        """Mean seconds between two arrivals."""
        if point.clients:  # all requests are due at the start
            return 0.0
        return 60 / point.rate if point.rate else self.one_s(requests, point) * 100 / (point.load or 100)

    def turn(self, name: str, requests: str, point: ServingPoint) -> tuple[float, float]:
        """Two estimates for a system: seconds that an arrival seed takes in addition to its requests, and seconds that
        each request adds."""
        pace = self._pace(name, point)
        return pace.waits * self.one_s(requests, point), pace.stretch * self._step_s(requests, point)

    def _step_s(self, requests: str, point: ServingPoint) -> float:
        return max(self.gap_s(requests, point), self.one_s(requests, point))

    def _pace(self, name: str, point: ServingPoint) -> _Pace:
        """The pace measured at this point. Without one: the slowest at points with the same load and sharing, then an
        assumption, for which a system is at least as slow as at any point.
        """
        if (name, point) in self._paces:
            return self._paces[name, point]
        known = {where: pace for (system, where), pace in self._paces.items() if system == name}
        alike = [pace for where, pace in known.items() if _kind(where) == _kind(point)]
        if not alike:
            waiting = (point.clients or point.batch_size / point.answers) / 2
            apart = point.model_copy(update={"n_s": 0})
            slower = self._assumed(apart) / self._assumed(point) if name in self._unshared else 1.0
            alike = [_Pace(slower * waiting, slower), *known.values()]
        return _Pace(max(pace.waits for pace in alike), max(pace.stretch for pace in alike))


def _kind(point: ServingPoint) -> tuple[object, ...]:
    return point.load, point.rate, point.clients, bool(point.n_s)


def assumed_request_s(
    point: ServingPoint, weights: int, token_bytes: int, flops_per_s: float, bytes_per_s: float
) -> float:
    """Estimate the seconds that a server takes for one request in a full batch.

    `weights`: number of the model's weights. `token_bytes`: bytes of K/V of one token. Shared prompt tokens cost
    nothing, the others cost matrix products. A step reads the weights once, and the K/V of every sequence. Each answer
    to the prompt is a sequence. The sum is multiplied by 1.5 for other work of servers.
    """
    prompt_s = 2 * weights * (point.n_p - (point.n_s or 0)) / flops_per_s
    batch = min(point.clients * point.answers if point.clients else point.batch_size, point.batch_size)
    read = weights * point.element_bytes / batch + (point.n_p + point.n_c / 2) * token_bytes
    step_s = read / bytes_per_s + 2 * weights / flops_per_s
    return 1.5 * (prompt_s + point.answers * point.n_c * step_s)
