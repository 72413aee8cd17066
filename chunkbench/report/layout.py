"""How the runs of a kind of work are shown, compared and judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chunkbench.bench.store import Manifest
from chunkbench.report.claims.judgement import Judge
from chunkbench.report.metric import Metric
from chunkbench.report.report import Report
from chunkbench.report.view import Body, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Layout:
    """What a kind gives to reports, comparisons and claims."""

    body: Callable[[View], Body]
    """The part of a run's report that depends on the kind."""
    draw: Callable[[Report, Manifest], Figure | None]
    """The figure of a run; None if there is too little to draw. It loads matplotlib when it is called."""
    metrics: Mapping[str, Metric]
    """Name -> a figure of its results; beside them every kind has `latency`, if it times anything."""
    claims: Mapping[str, Judge]
    """Claim of `results/paper/claims.csv` -> what judges it, of the claims that this kind measures."""
