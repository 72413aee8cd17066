"""Finds the measured points that claims are judged by. The points have the paper's setup and come from one or more
runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

from chunkbench.bench.analysis.derive import Group, Row, groups
from chunkbench.bench.analysis.ratio import ratio
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.report.claims.judgement import Figure, Judgement
from chunkbench.report.printed import SETUP

T = TypeVar("T")
Implementations: TypeAlias = "str | tuple[str, ...]"
"""Id of one implementation, or ids of several. Of several, the one with the lowest latency is used."""
PAGED = ("paged_attn", "vllm_paged_attn")
STAR = ("paged_attn_star", "vllm_paged_attn_star")
"""The paper's PagedAttn*, as this project and vLLM implement it. Claims use the faster of the two."""
_CONFIDENCE = 0.95
_NAMES = ("n_p", "n_s", "n_c", "batch_size", "tree", "heads", "kv_heads")
"""Points of different runs count as the same point if these axes are equal."""


@dataclass(frozen=True)
class MeasuredPoint:
    """One point with the rows of every run that measured it, with the protocol `strict` and cold caches."""

    axes: Mapping[str, Any]
    runs: tuple[Mapping[str, Row], ...]
    """For each run that measured the point: implementation -> row."""

    @property
    def rows(self) -> Mapping[str, Row]:
        """Implementation -> row. If several runs measured an implementation, this is the row of the last run."""
        return {name: row for run in self.runs for name, row in run.items()}

    def ratio(self, of: Implementations, against: Implementations, place: str = "") -> Figure | None:
        """Latency of `of` divided by the latency of `against`, from rounds that were measured side by side. Uses the
        last run that has such rounds. None if no run has them.

        place: text of the figure's place. It may contain {of}, {against} and names of axes in braces, which are
        replaced by their values.
        """
        of, against = self._fastest(of), self._fastest(against)
        for run in reversed(self.runs):
            figure = latency_ratio(run, of, against)
            if figure is not None:
                names = {"of": self.label(of), "against": self.label(against)}
                return replace(figure, place=place.format(**self.axes, **names))
        return None

    def _fastest(self, implementations: Implementations) -> str:
        """The implementation with the lowest latency over ChunkAttn's in the same rounds; empty if none was
        measured."""
        if isinstance(implementations, str):
            return implementations
        ratios = {name: figure.value for name in implementations if (figure := self.ratio(name, "chunk_attn"))}
        return min(ratios, key=lambda name: ratios[name], default="")

    def label(self, implementation: str) -> str:
        """The name of an implementation in running text."""
        return {"vllm_paged_attn": "vLLM", "vllm_paged_attn_star": "vLLM*"}.get(
            implementation, self.rows[implementation].facts.label
        )


def latency_ratio(rows: Mapping[str, Row], of: str, against: str, place: str = "") -> Figure | None:
    """Latency of `of` divided by the latency of `against`, compared in each round. None if one of them was not
    measured.

    rows: implementation -> row, for one point of one run."""
    row, base = rows.get(of), rows.get(against)
    found = ratio(row.facts, base.facts, _CONFIDENCE) if row and base else None
    return Figure(found.value, found.low, found.high, (row, base), place) if row and base and found else None


def _fits(value: Any, wanted: Any) -> bool:
    return bool(wanted(value)) if callable(wanted) else wanted is ... or value == wanted


class RunRows:
    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows

    @cached_property
    def groups(self) -> list[Group]:
        """The rows of the run, grouped by point."""
        return groups(self.rows)

    @cached_property
    def by_experiment(self) -> Mapping[str, RunRows]:
        """Experiment -> the rows that it measured."""
        rows: dict[str, list[Row]] = {}
        for row in self.rows:
            rows.setdefault(row.facts.experiment, []).append(row)
        return {experiment: RunRows(own) for experiment, own in rows.items()}


class Evidence:
    """The rows of several runs. If two runs measured the same case, the row of the later run is used."""

    def __init__(self, runs: Sequence[RunRows], setup: Mapping[str, object] = SETUP) -> None:
        self.runs = runs
        self.setup = setup
        """The setup of the `points`."""

    @property
    def rows(self) -> Iterator[Row]:
        return (row for run in self.runs for row in run.rows)

    @property
    def groups(self) -> Iterator[Group]:
        """The rows of all runs, grouped by run and point."""
        return (group for run in self.runs for group in run.groups)

    def last(self, of: Callable[[Group], T | None], each_experiment: bool = False) -> list[T]:
        """The values that `of` returns for all points, without None. There is one value for each point: that of the
        last run that has one. With `each_experiment`, there is one value for each point and experiment."""
        found: dict[str, T] = {}
        for group in self.groups:
            value = of(group)
            if value is not None:
                experiment = next(iter(group.rows.values())).facts.experiment if each_experiment else ""
                found[f"{group.axes} {experiment}"] = value
        return list(found.values())

    def preferring(self, experiment: str) -> Evidence:
        """A copy in which rows of this experiment replace rows of other experiments at the same point."""
        return Evidence(sorted(self.runs, key=lambda run: experiment in run.by_experiment), self.setup)

    @property
    def completions(self) -> list[int]:
        """All values of n_c with which ChunkAttn was measured. The value with the most points comes first."""
        found = Counter(group.axes["n_c"] for group in self.groups if "chunk_attn" in group.rows)
        return [n_c for n_c, _ in found.most_common() if n_c is not None]

    def after(self, n_c: int) -> Evidence:
        """A copy in which `points` only finds points with this n_c."""
        return Evidence(self.runs, {**self.setup, "n_c": n_c})

    def of(self, experiment: str) -> Evidence:
        """A copy with only the rows of this experiment."""
        return Evidence(
            [run.by_experiment[experiment] for run in self.runs if experiment in run.by_experiment], self.setup
        )

    def points(self, implementation: str = "chunk_attn", **axes: Any) -> Iterator[MeasuredPoint]:
        """Points with the axes of `setup` at which `implementation` was measured. Each point comes once.

        `axes`: name of an axis -> the wanted values, which replace the setup's: one value, or `...` for all values, or
        a function that returns whether a value is wanted.
        """
        wanted = {**self.setup, "protocol": "strict", "cache": "cold", **axes}
        points: dict[str, MeasuredPoint] = {}
        for run in self.runs:
            # On a GPU, the mode `events` comes last and so counts: like the paper, it times only the device.
            for group in sorted(run.groups, key=lambda group: group.axes["mode"] == "events"):
                values, row = group.axes, group.rows.get(implementation)
                if row is None or row.derived.latency_us is None or not isinstance(row.facts, AttentionPoint):
                    continue
                if all(_fits(values.get(axis), value) for axis, value in wanted.items()):
                    name = repr([values[axis] for axis in _NAMES])
                    earlier = points[name].runs if name in points else ()
                    points[name] = MeasuredPoint(values, (*earlier, group.rows))
        return iter(points.values())

    def ratios(self, of: Implementations, against: Implementations, place: str = "", **axes: Any) -> list[Figure]:
        """The latency of `of` divided by the latency of `against`, for each point of `points` that has both."""
        measured = against if isinstance(against, str) else of
        assert isinstance(measured, str)  # one of the two is the same at all points
        found = (point.ratio(of, against, place) for point in self.points(measured, **axes))
        return [figure for figure in found if figure is not None]

    def point(self, **axes: Any) -> MeasuredPoint | None:
        return next(self.points(**axes), None)


Judge: TypeAlias = Callable[[Evidence], Judgement]
