"""What there is to say of decode attention: where ChunkAttn loses, the tables, what was expected."""

from __future__ import annotations

from chunkbench.report.view import Body, View
from chunkbench.workloads.decode import headline, tables

SEVERAL_WAYS = "points are counted once for each cache and mode in which they were timed"


def body(view: View) -> Body:
    """Losses before anything that flatters the baseline."""
    found = headline.matches(view.groups, view.baseline, view.columns)
    label = view.columns.name(view.baseline)
    shown = (
        tables.token_rate_table(view) if view.experiment.figure == "token_rate" else None,
        tables.latency_table(view),
        tables.ratio_table(view),
        tables.detail_table(view),
        tables.expectation_table(view) if view.outcomes else None,
    )
    return Body(
        headline.headline(found, label, len(view.groups), view.columns),
        tuple(table for table in shown if table is not None),
        headline.losses(found, label, view.axes, view.columns),
        (tables.BANDWIDTH_LEGEND, *([SEVERAL_WAYS] if {"cache", "mode"} & {*view.axes} else [])),
    )
