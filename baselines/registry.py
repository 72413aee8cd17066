"""Implementations found by entry point, ours and third parties' alike."""

from __future__ import annotations

import difflib
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple

from chunkbench.baselines.contract import Answer, Implementation
from chunkbench.experiment.names import MODULES

GROUP = "chunkbench.baselines"
_MODULES = {
    name: EntryPoint(name, f"chunkbench.baselines.modules:{kind}", "chunkbench.modules")
    for name, kind in zip(MODULES, ("QkvProjection", "SelfAttention", "Mlp"), strict=True)
}


class UnknownImplementation(LookupError):
    """No entry point has this id."""


class Surveyed(NamedTuple):
    """An implementation and its state on this machine."""

    id: str
    label: str
    answer: Answer


@cache
def _entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def names() -> list[str]:
    """Ids of all registered implementations, in alphabetical order."""
    return sorted(_entry_points())


def load(implementation: str) -> Implementation:
    """The implementation, or the module of a decoder layer, with this id.

    Raises `UnknownImplementation`; an adapter whose import fails raises what the import raised.
    """
    try:
        found = _MODULES.get(implementation) or _entry_points()[implementation]
    except KeyError:
        close = difflib.get_close_matches(implementation, names(), n=1)
        hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(names())}"
        raise UnknownImplementation(f"no implementation {implementation!r} is registered{hint}") from None
    instance: Implementation = found.load()()
    return instance


def availability(implementation: str, device: str) -> tuple[str, Answer]:
    """Label and state of one implementation; an adapter that fails to import is a "no", not an error."""
    try:
        loaded = load(implementation)
        return loaded.label, loaded.availability(device)
    except UnknownImplementation:
        raise
    except Exception as error:
        return implementation, Answer(False, f"its adapter does not load: {type(error).__name__}: {error}")


def survey(device: str) -> list[Surveyed]:
    """Every registered implementation with its state on this machine."""
    return [Surveyed(name, *availability(name, device)) for name in names()]
