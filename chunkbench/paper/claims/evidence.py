"""Where claims find what they are judged by: points of the paper's setup in any of several runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chunkbench.analysis.derive import Row
from chunkbench.analysis.points import group
from chunkbench.analysis.ratio import ratio
from chunkbench.paper.claims.judgement import Figure
from chunkbench.paper.printed import SETUP

PAGED = ("paged_attn", "vllm_paged_attn")
STAR = ("paged_attn_star", "vllm_paged_attn_star")
"""Ours and vLLM's: a claim against either column of the paper is judged against the faster."""
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Place:
    """One point as one or more runs measured it, timed as the strict protocol does, with cold caches."""

    axes: Mapping[str, Any]
    runs: tuple[Mapping[str, Row], ...]
    """What each run has of it, by implementation."""

    @property
    def rows(self) -> Mapping[str, Row]:
        """By implementation; where several runs measured one, the last counts."""
        return {name: row for run in self.runs for name, row in run.items()}

    def ratio(self, implementation: str, base: str) -> Figure | None:
        """Latency over latency, formed inside rounds, of the last run that measured both side by side; or None."""
        for run in reversed(self.runs):
            row, other = run.get(implementation), run.get(base)
            found = ratio(row.facts, other.facts, _CONFIDENCE) if row and other else None
            if row and other and found:
                return Figure(found.value, found.low, found.high, (row, other))
        return None

    def fastest(self, implementations: Sequence[str], base: str) -> tuple[str, Figure] | None:
        """Of these the one that takes least, with its latency over `base`'s."""
        known = [(name, found) for name in implementations if (found := self.ratio(name, base)) is not None]
        return min(known, key=lambda pair: pair[1].value, default=None)

    def label(self, implementation: str) -> str:
        """What running text calls an implementation."""
        return {"vllm_paged_attn": "vLLM", "vllm_paged_attn_star": "vLLM*"}.get(
            implementation, self.rows[implementation].facts.label
        )


class Evidence:
    """The rows of several runs; where runs measured the same, the last one counts."""

    def __init__(self, runs: Sequence[Sequence[Row]]) -> None:
        self.runs = runs

    def led_by(self, experiment: str) -> Evidence:
        """The same, but what a run of this experiment measured counts before all else."""
        return Evidence(sorted(self.runs, key=lambda rows: any(row.facts.experiment == experiment for row in rows)))

    def places(self, implementation: str = "chunk_attn", **axes: Any) -> Iterator[Place]:
        """Points of the paper's setup, but for `axes`, at which `implementation` was measured, each once."""
        wanted = {**SETUP, "protocol": "strict", "cache": "cold", **axes}
        found: dict[str, Place] = {}
        for rows in self.runs:
            row_of = {id(row.facts): row for row in rows}
            # On a GPU a point is timed in several modes; the device's own time of a call is what the paper's is.
            several = sorted(group([row.facts for row in rows]), key=lambda one: one[0]["mode"] == "events")
            for values, cases in several:
                here = {case.implementation: row_of[id(case)] for case in cases}
                own = here.get(implementation)
                if own is None or own.derived.latency_us is None or own.facts.model is not None:
                    continue
                if all(values.get(axis) == value for axis, value in wanted.items() if value is not ...):
                    name = repr([values[axis] for axis in ("n_p", "n_s", "n_c", "batch_size")])
                    earlier = found[name].runs if name in found else ()
                    found[name] = Place(values, (*earlier, here))
        return iter(found.values())

    def place(self, implementation: str = "chunk_attn", **axes: Any) -> Place | None:
        """The one such point, or None."""
        return next(self.places(implementation, **axes), None)
