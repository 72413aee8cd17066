"""The claims as a document: figures with unit, interval and bound."""

from __future__ import annotations

import pytest

from chunkbench.report.claims import Claim
from chunkbench.report.claims.document import document, measured
from chunkbench.report.text_table import render


def claim(value: float | None, low: float | None, high: float | None, unit: str, bound: str = "") -> Claim:
    return Claim("X", "section 1", "It is so", "ratio", unit, "holds", value, low, high, "2x", "it is", (), bound)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "low", "high", "unit", "shown"),
    [
        (12.2, 9.96, 13.5, "x", "12.2x (9.96 to 13.5)"),
        (0.676, 0.654, 0.701, "%", "68% (65 to 70)"),
        (0.034, 0.034, 0.034, "%", "3.4%"),
        (None, 2.0, 48.0, "sequences", "2 to 48 sequences"),
        (800.0, None, None, "KB", "800 KB"),
        (4.5, None, None, "MB", "4.50 MB"),
        (71461.3, None, None, "tokens", "71,461 tokens"),
        (None, None, None, "x", "-"),
    ],
)
def test_a_figure_has_its_unit(
    value: float | None, low: float | None, high: float | None, unit: str, shown: str
) -> None:
    assert measured(claim(value, low, high, unit)) == shown


def test_a_lower_bound_is_called_one() -> None:
    assert measured(claim(4.5, 4.5, 4.5, "x", "at least")) == "at least 4.50x"


def test_a_claim_without_a_clear_answer_says_so() -> None:
    doubtful = Claim(**{**vars(claim(1.9, 1.7, 2.1, "x")), "verdict": "cannot tell"})
    text = render(document([doubtful], []))
    assert "1 claim: 1 cannot tell." in text
    assert "X (section 1): It is so. These runs cannot tell: it is." in text
