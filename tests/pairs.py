"""Products of parameters of which `make test` takes every pair of values, and `make nightly` everything."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def pairs(*axes: Sequence[Any]) -> list[Any]:
    """The product of the axes, for `parametrize`. What adds no new pair of values of two axes is marked slow."""
    places = list(itertools.product(*(range(len(axis)) for axis in axes)))
    kept: set[tuple[int, ...]] = set()
    missing = {pair for place in places for pair in _pairs_of(place)}
    while missing:
        best = max(places, key=lambda place: len(missing & _pairs_of(place)))
        kept.add(best)
        missing -= _pairs_of(best)
    return [
        pytest.param(
            *(axis[index] for axis, index in zip(axes, place, strict=True)),
            marks=() if place in kept else pytest.mark.slow,
        )
        for place in places
    ]


def _pairs_of(place: tuple[int, ...]) -> set[Any]:
    return set(itertools.combinations(enumerate(place), 2))
