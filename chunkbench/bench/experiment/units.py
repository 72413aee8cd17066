"""Durations and percentages, as people write them."""

from __future__ import annotations

import re
from fractions import Fraction

_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([a-z]+)")
_PERCENT = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?%")


def parse_duration(text: str) -> float:
    """Seconds of a duration such as `5m`, `90s`, `1h30m`, `0.5s` or `250ms`.

    Units go from large to small, each at most once. Raises `ValueError`, which says how to write a duration.
    """
    hint = "write it like 5m, 90s, 1h30m or 0.5s"
    parts = _PART.findall(text)
    if "".join(number + unit for number, unit in parts) != text or not parts:
        if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
            raise ValueError(f"{text} has no unit; write {text}s for seconds or {text}m for minutes")
        raise ValueError(f"{text!r} is not a duration; {hint}")
    units = [unit for _, unit in parts]
    for unit in units:
        if unit not in _SECONDS:
            raise ValueError(f"{text!r} has an unknown unit {unit!r} (units are h, m, s and ms); {hint}")
    if units != sorted(set(units), key=list(_SECONDS).index):
        raise ValueError(f"{text!r} must name each unit once, the largest first; {hint}")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if seconds <= 0:
        raise ValueError("a duration must be longer than zero")
    return seconds


def parse_percent(text: str) -> float:
    """The number that `2%` stands for, 0.02. Raises `ValueError` on anything else."""
    match = _PERCENT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a percentage; write it like 2% or 0.02")
    return float(Fraction(match[1]) / 100)
