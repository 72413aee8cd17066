"""The measured points that claims are judged by: points of the paper's setup in any of several runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from chunkbench.analysis.derive import Group, Row, groups
from chunkbench.analysis.ratio import ratio
from chunkbench.experiment.point import AttentionPoint
from chunkbench.paper.claims.judgement import Figure
from chunkbench.paper.printed import SETUP

PAGED = ("paged_attn", "vllm_paged_attn")
STAR = ("paged_attn_star", "vllm_paged_attn_star")
"""This project's kernel and vLLM's. A claim about a column of the paper is judged by the faster of the two."""
_CONFIDENCE = 0.95
_NAMES = ("n_p", "n_s", "n_c", "batch_size", "tree", "heads", "kv_heads")
"""Axes that tell apart the points of one question."""


@dataclass(frozen=True)
class MeasuredPoint:
    """One point as one or more runs measured it: strict protocol, cold caches."""

    axes: Mapping[str, Any]
    runs: tuple[Mapping[str, Row], ...]
    """Each run's rows of this point, by implementation."""

    @property
    def rows(self) -> Mapping[str, Row]:
        """Rows by implementation; where several runs measured an implementation, the last run counts."""
        return {name: row for run in self.runs for name, row in run.items()}

    def ratio(self, implementation: str, base: str) -> Figure | None:
        """Ratio of the latencies, formed inside rounds, in the last run that measured both side by side; or None."""
        for run in reversed(self.runs):
            row, base_row = run.get(implementation), run.get(base)
            latency_ratio = ratio(row.facts, base_row.facts, _CONFIDENCE) if row and base_row else None
            if row and base_row and latency_ratio:
                return Figure(latency_ratio.value, latency_ratio.low, latency_ratio.high, (row, base_row))
        return None

    def fastest(self, implementations: Sequence[str], base: str) -> tuple[str, Figure] | None:
        """The fastest of these implementations, with its latency over that of `base`; None if none was measured."""
        ratios = [(name, figure) for name in implementations if (figure := self.ratio(name, base)) is not None]
        return min(ratios, key=lambda pair: pair[1].value, default=None)

    def label(self, implementation: str) -> str:
        """The name of an implementation in running text."""
        return {"vllm_paged_attn": "vLLM", "vllm_paged_attn_star": "vLLM*"}.get(
            implementation, self.rows[implementation].facts.label
        )


class RunRows:
    """The rows of one run."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows

    @cached_property
    def groups(self) -> list[Group]:
        """Its points."""
        return groups(self.rows)


class Evidence:
    """The rows of several runs. Where runs measured the same case, the last run counts."""

    def __init__(self, runs: Sequence[RunRows]) -> None:
        self.runs = runs

    @property
    def rows(self) -> Iterator[Row]:
        """All rows, run by run."""
        return (row for run in self.runs for row in run.rows)

    @property
    def groups(self) -> Iterator[Group]:
        """The points of every run, run by run."""
        return (group for run in self.runs for group in run.groups)

    def preferring(self, experiment: str) -> Evidence:
        """The same rows, but runs of this experiment count before all others."""
        return Evidence(sorted(self.runs, key=lambda run: any(row.facts.experiment == experiment for row in run.rows)))

    def of(self, experiment: str) -> Evidence:
        """The rows of this experiment alone."""
        return Evidence([RunRows([row for row in run.rows if row.facts.experiment == experiment]) for run in self.runs])

    def points(self, implementation: str = "chunk_attn", **axes: Any) -> Iterator[MeasuredPoint]:
        """Points of the setup, changed by `axes` (`...`: any value), where `implementation` was measured, each once."""
        wanted = {**SETUP, "protocol": "strict", "cache": "cold", **axes}
        points: dict[str, MeasuredPoint] = {}
        for run in self.runs:
            # Of several modes (on a GPU) `events` comes last and so counts: like the paper, it times the device alone.
            for group in sorted(run.groups, key=lambda group: group.axes["mode"] == "events"):
                values, row = group.axes, group.rows.get(implementation)
                if row is None or row.derived.latency_us is None or not isinstance(row.facts, AttentionPoint):
                    continue
                if all(values.get(axis) == value for axis, value in wanted.items() if value is not ...):
                    name = repr([values[axis] for axis in _NAMES])
                    earlier = points[name].runs if name in points else ()
                    points[name] = MeasuredPoint(values, (*earlier, group.rows))
        return iter(points.values())

    def point(self, **axes: Any) -> MeasuredPoint | None:
        """The first point that `points` gives, or None."""
        return next(self.points(**axes), None)
