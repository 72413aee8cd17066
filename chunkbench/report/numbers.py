"""Numbers as people read them: no digit that the measurement cannot carry."""

from __future__ import annotations

import math

NOTHING = "-"


def significant(value: float, digits: int = 4) -> str:
    """`digits` significant digits, thousands separated, never in powers of ten: 332.5, 5,203, 405,100."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else NOTHING
    places = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, places)
    if rounded and math.floor(math.log10(abs(rounded))) > math.floor(math.log10(abs(value))):
        places -= 1  # 9.9999 became 10.000: one digit less behind the point
    return f"{rounded:,.{max(places, 0)}f}"


def micros(value: float | None) -> str:
    """Microseconds, without the unit: four digits are what repeated runs agree on at best."""
    return NOTHING if value is None else significant(value)


def times(value: float | None) -> str:
    """A ratio: 0.91x, 12.3x, 123x."""
    if value is None:
        return NOTHING
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}x"


def percent(fraction: float | None) -> str:
    """A share: 95%, 4.5%, 0.3%, <0.1%."""
    if fraction is None:
        return NOTHING
    if 0 < fraction < 0.0005:
        return "<0.1%"
    return f"{fraction:.0%}" if fraction >= 0.0995 else f"{fraction:.1%}"


def megabytes(count: int | None) -> str:
    """Bytes in millions, without the unit."""
    return NOTHING if count is None else significant(count / 1e6)


def gigabytes(count: float) -> str:
    """Bytes in 2^30, with the unit: memory is sold that way."""
    return f"{count / 2**30:.3g} GiB"


def span(low: float | None, high: float | None) -> str:
    """An interval in microseconds, without the unit."""
    return NOTHING if low is None or high is None else f"{significant(low)}..{significant(high)}"


def count(number: int, what: str) -> str:
    """`1 point`, `2 points`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
