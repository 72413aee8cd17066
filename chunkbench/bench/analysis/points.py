"""Groups cases that may be compared. The cases of a group differ only in the implementation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from chunkbench.bench.experiment.axes import AXES as SWEPT
from chunkbench.bench.experiment.values import show_value
from chunkbench.bench.store.results import MEASURED, Result

AXES = (*(name for name in SWEPT if name != "threads"), "device", "threads", "protocol", "cache", "mode")
"""Cases of one group have equal values of these axes. Tables show the axes in this order."""

_MACHINE = "machine"


def measured(case: Result) -> bool:
    """Whether the case has samples and the status `ok` or `noisy`."""
    return case.status in MEASURED and bool(case.rounds)


def counted(case: Result) -> bool:
    """Whether the case has the status `ok` or `noisy`. The case may have no samples."""
    return case.status in MEASURED


def group(cases: Sequence[Result]) -> list[tuple[Mapping[str, Any], list[Result]]]:
    """Group the cases that differ only in the implementation. Returns the axes and the cases of each group.

    The groups are sorted by the values of their axes. `threads` counts as an axis only if it was swept. Otherwise a
    case that never ran would be in another group, because it has no number of threads.
    """
    grouping = (*AXES, _MACHINE)
    fixed = [name for name in grouping if name != "threads"]
    times_seen = Counter((_values(case, fixed), case.implementation) for case in cases)
    names = grouping if any(count > 1 for count in times_seen.values()) else fixed
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for case in cases:
        groups.setdefault(_values(case, names), []).append(case)
    ordered = sorted(groups.items(), key=lambda item: [_rank(value) for value in item[0]])
    return [(dict(zip(names, values, strict=True)), members) for values, members in ordered]


def varying(groups: Sequence[tuple[Mapping[str, Any], object]]) -> list[str]:
    """Names of the axes whose values differ between the groups."""
    return [name for name in (*AXES, _MACHINE) if len({repr(axes.get(name)) for axes, _ in groups}) > 1]


def describe(axes: Mapping[str, Any], names: Sequence[str]) -> str:
    """Axes as text: `n_p=1024 n_s=512`."""
    return " ".join(f"{name}={show_value(axes.get(name))}" for name in names)


def _values(case: Result, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(case.axis(name) for name in names)


def _rank(value: Any) -> tuple[int, Any]:
    """Sort key for values of mixed types: None, then numbers (a range by its low end), then other values as text."""
    if value is None:
        return (0, ())
    if isinstance(value, int):
        return (1, (value,))
    if isinstance(value, tuple) and all(isinstance(part, int) for part in value):
        return (1, value)
    return (2, (str(value),))
