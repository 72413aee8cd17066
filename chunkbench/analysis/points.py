"""Which cases belong together: same point, protocol, cache and mode, only the implementation differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chunkbench.store.facts import CaseFacts

AXES = (
    "model",
    "n_p",
    "n_s",
    "n_c",
    "batch_size",
    "prompts",
    "tree",
    "heads",
    "kv_heads",
    "head_dim",
    "chunk_size",
    "block_size",
    "dtype",
    "device",
    "threads",
    "protocol",
    "cache",
    "mode",
)
"""What tells one group of cases from another, in the order in which it leads a table."""

Group = tuple[Mapping[str, Any], "list[CaseFacts]"]


def measured(case: CaseFacts) -> bool:
    """Whether a case has a latency that may be compared: `ok` or `noisy`, with samples."""
    # Not at the top: the store imports analysis, and its package would still be half loaded.
    from chunkbench.store.facts import MEASURED

    return case.status in MEASURED and bool(case.samples_us)


def counted(case: CaseFacts) -> bool:
    """Whether a case has counts that may be compared (bytes, work items), timed or not."""
    from chunkbench.store.facts import MEASURED

    return case.status in MEASURED


def group(cases: Sequence[CaseFacts]) -> list[Group]:
    """Cases that may be compared with each other, with the values of their axes, in rising order of those.

    `threads` tells groups apart only where it was swept: a case that never ran does not know its threads, and still
    belongs beside those of its point that did.
    """
    fixed = [name for name in AXES if name != "threads"]
    seen = Counter((_values(case, fixed), case.implementation) for case in cases)
    names = AXES if any(count > 1 for count in seen.values()) else fixed
    groups: dict[tuple[Any, ...], list[CaseFacts]] = {}
    for case in cases:
        groups.setdefault(_values(case, names), []).append(case)
    ordered = sorted(groups.items(), key=lambda item: [_rank(value) for value in item[0]])
    return [(dict(zip(names, values, strict=True)), members) for values, members in ordered]


def varying(groups: Sequence[Group]) -> list[str]:
    """Axes that have more than one value among the groups."""
    return [name for name in AXES if len({repr(axes.get(name)) for axes, _ in groups}) > 1]


def describe(axes: Mapping[str, Any], names: Sequence[str]) -> str:
    """Axes in words: `n_p=1024 n_s=512`."""
    return " ".join(f"{name}={show(axes.get(name))}" for name in names)


def show(value: Any) -> str:
    """One value of an axis, short enough for a column."""
    if value is None:
        return "-"
    if isinstance(value, tuple) and all(isinstance(part, int) for part in value):
        return "-".join(map(str, value))
    if isinstance(value, tuple):
        return " ".join(_show_node(node) for node in value)
    return str(value)


def _show_node(node: tuple[int, Any]) -> str:
    tokens, children = node
    below = str(children) if isinstance(children, int) else f"({' '.join(_show_node(child) for child in children)})"
    return f"{tokens}x{below}"


def _values(case: CaseFacts, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(getattr(case, name) for name in names)


def _rank(value: Any) -> tuple[int, Any]:
    """Sort key for values of mixed types: nothing, then numbers (a range by its low end), then the rest as text."""
    if value is None:
        return (0, ())
    if isinstance(value, int):
        return (1, (value,))
    if isinstance(value, tuple) and all(isinstance(part, int) for part in value):
        return (1, value)
    return (2, (str(value),))
