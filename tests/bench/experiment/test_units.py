"""Durations, percentages and shares of n_p."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.bench.experiment import parse_duration
from chunkbench.bench.experiment.units import parse_percent
from chunkbench.bench.experiment.values import Share


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5m", 300), ("90s", 90), ("1h30m", 5400), ("0.5s", 0.5), ("250ms", 0.25), ("1h0m1s", 3601), ("2m1ms", 120.001)],
)
def test_duration(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("300", "write 300s for seconds or 300m for minutes"),
        ("5min", "unknown unit 'min'"),
        ("5 m", "is not a duration"),
        ("30s1h", "the largest first"),
        ("1m1m", "once"),
        ("0s", "longer than zero"),
        ("-5m", "is not a duration"),
        ("", "is not a duration"),
        ("m", "is not a duration"),
        ("5M", "is not a duration"),
        ("1e3s", "unknown unit 'e'"),
    ],
)
def test_bad_duration(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_duration(text)


@given(st.text(max_size=12))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    try:
        assert parse_duration(text) > 0
    except ValueError as error:
        assert str(error)  # noqa: PT017


def test_percent() -> None:
    assert parse_percent("2%") == 0.02
    assert parse_percent("0.5 %") == 0.005
    with pytest.raises(ValueError, match="not a percentage"):
        parse_percent("two%")


@pytest.mark.parametrize(
    ("text", "share"),
    [("n_p", Fraction(1)), ("0.5 n_p", Fraction(1, 2)), ("3/4 n_p", Fraction(3, 4)), ("0.1n_p", Fraction(1, 10))],
)
def test_share(text: str, share: Fraction) -> None:
    assert Share.read(text).of_n_p == share


@pytest.mark.parametrize("text", ["", "half", "0.5", "2 n_p", "-1 n_p", "1/0 n_p", "0.5/2 n_p", "n_p n_p", "n_s"])
def test_bad_share(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a number of tokens|more than the whole prompt"):
        Share.read(text)
