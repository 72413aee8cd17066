"""Products of parameters of which `make test` takes a part, and `make nightly` everything."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def pairs(*axes: Sequence[Any]) -> list[Any]:
    """The product of the axes, for `parametrize`. What adds no new pair of values of two axes is marked slow."""
    return _covering(2, axes)


def values(*axes: Sequence[Any]) -> list[Any]:
    """The product of the axes, for `parametrize`. What adds no new value of an axis is marked slow."""
    return _covering(1, axes)


def _covering(size: int, axes: Sequence[Sequence[Any]]) -> list[Any]:
    places = list(itertools.product(*(range(len(axis)) for axis in axes)))
    parts = {place: set(itertools.combinations(enumerate(place), size)) for place in places}
    missing = set[Any]().union(*parts.values())
    kept = set()
    while missing:
        best = max(places, key=lambda place: len(missing & parts[place]))
        kept.add(best)
        missing -= parts[best]
    return [
        pytest.param(
            *(axis[index] for axis, index in zip(axes, place, strict=True)),
            marks=() if place in kept else pytest.mark.slow,
        )
        for place in places
    ]
