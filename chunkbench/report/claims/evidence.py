"""The measured points by which claims are judged: points of the paper's setup, from one or several runs."""

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
"""One implementation, or several implementations, of which the fastest counts."""
PAGED = ("paged_attn", "vllm_paged_attn")
STAR = ("paged_attn_star", "vllm_paged_attn_star")
"""This project's kernel and vLLM's. A claim about a column of the paper is judged by the faster of the two."""
_CONFIDENCE = 0.95
_NAMES = ("n_p", "n_s", "n_c", "batch_size", "tree", "heads", "kv_heads")
"""Axes by which points of different runs are matched."""


@dataclass(frozen=True)
class MeasuredPoint:
    """One point as one or more runs measured it: strict protocol, cold caches."""

    axes: Mapping[str, Any]
    runs: tuple[Mapping[str, Row], ...]
    """[run] implementation -> row of this point."""

    @property
    def rows(self) -> Mapping[str, Row]:
        """Rows by implementation; where several runs measured an implementation, the last run counts."""
        return {name: row for run in self.runs for name, row in run.items()}

    def ratio(self, of: Implementations, against: Implementations, place: str = "") -> Figure | None:
        """Ratio of the latencies, formed inside rounds, in the last run that measured both side by side; or None.

        place: a text with the point's axes and the names {of} and {against} in braces.
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
    """Ratio of the latencies of two rows of one point, formed inside rounds; None if one of them was not measured."""
    row, base = rows.get(of), rows.get(against)
    found = ratio(row.facts, base.facts, _CONFIDENCE) if row and base else None
    return Figure(found.value, found.low, found.high, (row, base), place) if row and base and found else None


def _fits(value: Any, wanted: Any) -> bool:
    return bool(wanted(value)) if callable(wanted) else wanted is ... or value == wanted


class RunRows:
    """The rows of one run."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows

    @cached_property
    def groups(self) -> list[Group]:
        """The points of the run."""
        return groups(self.rows)

    @cached_property
    def by_experiment(self) -> Mapping[str, RunRows]:
        """Experiment -> its rows."""
        rows: dict[str, list[Row]] = {}
        for row in self.rows:
            rows.setdefault(row.facts.experiment, []).append(row)
        return {experiment: RunRows(own) for experiment, own in rows.items()}


class Evidence:
    """The rows of several runs. Where runs measured the same case, the last run counts."""

    def __init__(self, runs: Sequence[RunRows], setup: Mapping[str, object] = SETUP) -> None:
        self.runs = runs
        self.setup = setup
        """The setup of the `points`."""

    @property
    def rows(self) -> Iterator[Row]:
        """All rows, run by run."""
        return (row for run in self.runs for row in run.rows)

    @property
    def groups(self) -> Iterator[Group]:
        """The points of every run, run by run."""
        return (group for run in self.runs for group in run.groups)

    def last(self, of: Callable[[Group], T | None], each_experiment: bool = False) -> list[T]:
        """The values of `of` at points of any setup, without None. If runs share a point, the last run with a value
        counts; with `each_experiment`, the last run of each experiment."""
        found: dict[str, T] = {}
        for group in self.groups:
            value = of(group)
            if value is not None:
                experiment = next(iter(group.rows.values())).facts.experiment if each_experiment else ""
                found[f"{group.axes} {experiment}"] = value
        return list(found.values())

    def preferring(self, experiment: str) -> Evidence:
        """The same rows, but at a shared point the runs of this experiment count."""
        return Evidence(sorted(self.runs, key=lambda run: experiment in run.by_experiment), self.setup)

    @property
    def completions(self) -> list[int]:
        """Every n_c that ChunkAttn was measured with, the one with the most points first."""
        found = Counter(group.axes["n_c"] for group in self.groups if "chunk_attn" in group.rows)
        return [n_c for n_c, _ in found.most_common() if n_c is not None]

    def after(self, n_c: int) -> Evidence:
        """The same rows, but the `points` are those with this n_c."""
        return Evidence(self.runs, {**self.setup, "n_c": n_c})

    def of(self, experiment: str) -> Evidence:
        """The rows of this experiment alone."""
        return Evidence(
            [run.by_experiment[experiment] for run in self.runs if experiment in run.by_experiment], self.setup
        )

    def points(self, implementation: str = "chunk_attn", **axes: Any) -> Iterator[MeasuredPoint]:
        """Points of the setup, changed by `axes`, where `implementation` was measured, each once.

        An axis of `axes` is given as a value, as a function that accepts values, or as `...` for any value.
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
        """The ratio at each of the `points` where both implementations were measured."""
        measured = against if isinstance(against, str) else of
        assert isinstance(measured, str)  # one of the two is the same at all points
        found = (point.ratio(of, against, place) for point in self.points(measured, **axes))
        return [figure for figure in found if figure is not None]

    def point(self, **axes: Any) -> MeasuredPoint | None:
        """The first point that `points` gives, or None."""
        return next(self.points(**axes), None)


Judge: TypeAlias = Callable[[Evidence], Judgement]
"""Judges one claim by the measured rows."""
