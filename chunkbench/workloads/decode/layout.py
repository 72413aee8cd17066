"""The report of decode attention: where ChunkAttn is slower, the tables, and the verdicts on expectations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from chunkbench.bench.analysis.ranking import contests, standings
from chunkbench.bench.store import Manifest
from chunkbench.report import ranking
from chunkbench.report.layout import Layout, Report
from chunkbench.report.view import Body, View
from chunkbench.workloads.decode import (
    check_table,
    claims,
    head_caches,
    headline,
    latent_claims,
    latent_report,
    query_rows,
    tables,
)
from chunkbench.workloads.decode.metrics import METRICS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COUNTED_PER_CACHE_AND_MODE = "a point counts once for each cache and mode in which it was timed"


def body(view: View) -> Body:
    return _BODIES.get(view.experiment.figure, _usual)(view)


def _usual(view: View) -> Body:
    """The report of most experiments: token rates where the figure shows them, latencies, ratios, details,
    expectations.
    """
    matches = headline.matches(view.groups, view.baseline, view.columns)
    label = view.columns.name(view.baseline)
    tables_or_none = (
        tables.token_rate_table(view) if view.experiment.figure == "token_rate" else None,
        tables.latency_table(view),
        tables.ratio_table(view),
        tables.detail_table(view),
        tables.expectation_table(view) if view.outcomes else None,
    )
    return Body(
        f"{headline.headline(matches, label, len(view.groups))} {view.variants_ahead()}".rstrip(),
        tuple(table for table in tables_or_none if table is not None),
        headline.baseline_losses(matches, label, view.axes, view.columns),
        (tables.BANDWIDTH_LEGEND, *([_COUNTED_PER_CACHE_AND_MODE] if {"cache", "mode"} & {*view.axes} else [])),
    )


def _ranked(view: View) -> Body:
    """The report that ranks all implementations: ranking, the fastest at each point, latencies, ratios, details."""
    compared = contests(view.groups, view.experiment.confidence)
    ranked = standings(compared)
    return Body(
        ranking.headline(view, ranked),
        (
            ranking.ranking_table("Ranking over all points", ranked, view.columns.name),
            ranking.fastest_table(view, compared),
            tables.latency_table(view),
            *filter(None, [tables.ratio_table(view)]),
            tables.detail_table(view),
        ),
        ranking.losses(view, compared),
        (ranking.LEGEND, tables.BANDWIDTH_LEGEND),
    )


_BODIES: Mapping[str, Callable[[View], Body]] = {
    "checks": check_table.body,
    "head_caches": head_caches.body,
    "latent": latent_report.body,
    "query_rows": query_rows.body,
    "ranking": _ranked,
}
"""Value of the experiment's key `figure` -> the function that writes the report."""


def _draw(report: Report, manifest: Manifest) -> Figure | None:
    # Imported late: matplotlib loads slowly, and tables do not need it.
    from chunkbench.workloads.decode import (
        advantage,
        head_caches_figure,
        latent_figure,
        query_rows_figure,
        ranking_figure,
        speedup,
        token_rate,
    )

    if manifest.experiment.figure == "checks":
        return None
    figures = {
        "speedup": speedup.draw,
        "token_rate": token_rate.draw,
        "advantage": advantage.draw,
        "head_caches": head_caches_figure.draw,
        "latent": latent_figure.draw,
        "query_rows": query_rows_figure.draw,
        "ranking": ranking_figure.draw,
    }
    return figures.get(manifest.experiment.figure, speedup.draw)(report, manifest)


LAYOUT = Layout(body, _draw, METRICS, {**claims.JUDGES, **latent_claims.JUDGES, **query_rows.JUDGES})
