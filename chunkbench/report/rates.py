"""Sustained rates as text, and those that the paper states."""

from __future__ import annotations

from collections.abc import Mapping

from chunkbench.analysis.serving import SustainedRate
from chunkbench.paper.printed import paper_rows
from chunkbench.report.numbers import NOTHING, significant

PAPER_OBJECTIVE_S = 0.040
"""Seconds per token of Figure 5."""


def rate_words(rate: SustainedRate | None) -> str:
    """A rate as the text of a cell; `≥` where all rates meet the objective."""
    return NOTHING if rate is None else f"{'≥ ' if rate.at_least else ''}{significant(rate.per_s, 3)}"


def paper_rates(n_p: int) -> Mapping[str, float]:
    """System -> requests per second that the paper's text states for Figure 5, with the whole prompt shared."""
    return {
        str(row["implementation"]): float(row["value"])
        for row in paper_rows("figure_points")
        if row["figure"] == "figure5" and int(row["n_p"]) == n_p
    }
