from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.report.numbers import count, megabytes, micros, percent, significant, span, times


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123456, "0.01235"),
        (5.2034, "5.203"),
        (9.99996, "10.00"),
        (56.0, "56.00"),
        (332.5, "332.5"),
        (999.96, "1,000"),
        (5203.4, "5,203"),
        (24913.0, "24,910"),
        (405123.0, "405,100"),
        (0, "0"),
        (float("nan"), "-"),
    ],
)
def test_four_digits(value: float, text: str) -> None:
    assert significant(value) == text


@given(st.floats(1e-3, 1e9))
def test_rounding_stays_within_half_a_digit(value: float) -> None:
    text = significant(value)
    assert float(text.replace(",", "")) == pytest.approx(value, rel=5.1e-4)
    assert len(text.replace(",", "").replace(".", "").lstrip("0")) >= 4


@pytest.mark.parametrize(
    ("value", "text"), [(0.914, "0.91x"), (2.7582, "2.76x"), (9.996, "10.0x"), (28.34, "28.3x"), (99.96, "100x")]
)
def test_ratios(value: float, text: str) -> None:
    assert times(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.951, "95%"), (0.0456, "4.6%"), (0.0996, "10%"), (1.07, "107%"), (4e-4, "<0.1%"), (0.0, "0.0%")],
)
def test_shares(value: float, text: str) -> None:
    assert percent(value) == text


def test_a_missing_value_is_a_dash() -> None:
    assert [micros(None), times(None), percent(None), megabytes(None), span(None, 1.0)] == ["-"] * 5


def test_counts_spans_and_megabytes() -> None:
    assert (count(1, "point"), count(12, "point")) == ("1 point", "12 points")
    assert span(27180.4, 28280.0) == "27,180..28,280"
    assert megabytes(537_395_200) == "537.4"
