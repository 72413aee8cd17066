"""What there is to say of decode attention: where ChunkAttn loses, the tables, what was expected."""

from __future__ import annotations

from chunkbench.report import headline, tables
from chunkbench.report.view import Told, View

SEVERAL_WAYS = "points are counted once for each cache and mode in which they were timed"


def told(view: View) -> Told:
    """Losses before anything that flatters the baseline."""
    found = headline.matches(view.groups, view.baseline)
    label = view.name(view.baseline)
    shown = (
        tables.token_rate_table(view) if view.experiment.get("figure") == "token_rate" else None,
        tables.latency_table(view),
        tables.ratio_table(view),
        tables.detail_table(view),
        tables.expectation_table(view) if view.outcomes else None,
    )
    return Told(
        headline.headline(found, label, len(view.groups)),
        tuple(table for table in shown if table is not None),
        headline.losses(found, label, view.axes),
        (tables.BANDWIDTH_LEGEND, *([SEVERAL_WAYS] if {"cache", "mode"} & {*view.axes} else [])),
    )
