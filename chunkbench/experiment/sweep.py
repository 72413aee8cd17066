"""Turns a sweep into combinations of axes: lists of a block multiply, blocks add up, `exclude` removes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeVar, cast

from chunkbench.experiment.axes import AXES, parse_axes, parse_axis
from chunkbench.experiment.llama import shape_of
from chunkbench.experiment.units import parse_share
from chunkbench.experiment.values import (
    MAX_SEQUENCES,
    AxisValue,
    Finding,
    Findings,
    Forest,
    LengthRange,
    Path,
    sequences_in,
    tree_paths,
)

MAX_POINTS = 10_000
MAX_INDEX = (1 << 31) - 1
"""Kernels count tokens in 32 bits."""
REPLAYED = dict.fromkeys(
    ("traffic", "memory", "schedule", "samples", "beams"), "is only for `kind: replay`; leave it out"
)
"""Axes that only replays have, with what to say elsewhere."""
INDEPENDENT = ("head_dim", "chunk_size", "block_size", "dtype", "threads")
"""Axes whose values do not depend on any other axis."""
T = TypeVar("T")


@dataclass(frozen=True)
class Required:
    """A block or the defaults must give at least one of `axes`; `message` is the complaint if they do not."""

    axes: frozenset[str]
    message: str


N_P = Required(frozenset({"n_p"}), "n_p is missing, here and under defaults")
N_S = Required(
    frozenset({"n_s", "tree"}), "n_s is missing (0 for nothing shared), here and under defaults; or give a tree"
)


@dataclass(frozen=True)
class SweepRules:
    """What a kind of work requires of the axes of its experiments."""

    wrong: Callable[[Mapping[str, AxisValue]], Iterator[Finding]]
    """Finds conflicts in one combination of axes; a finding's path begins with the axis to blame."""
    required: tuple[Required, ...]
    foreign: Mapping[str, str] = field(default_factory=dict)
    """Axis that such experiments cannot have -> the reason, and what to do."""
    implied: Mapping[str, AxisValue] = field(default_factory=dict)
    """Axis -> value, for axes that every block has without naming them."""


def blocks_of(
    defaults: Mapping[str, Sequence[T]], sweep: Sequence[Mapping[str, Sequence[T]]], implied: Mapping[str, T]
) -> Iterator[dict[str, Sequence[T]]]:
    """The axes of every block, with the defaults and the values that the kind of work implies."""
    for block in sweep:
        yield {axis: [value] for axis, value in implied.items()} | merge(defaults, block)


def merge(defaults: Mapping[str, T], block: Mapping[str, T]) -> dict[str, T]:
    """A block's axes over the defaults. A `tree` displaces default n_s and prompts; n_s or prompts displace a tree."""
    displaced: set[str] = set()
    if "tree" in block:
        displaced |= {"n_s", "prompts"}
    if "n_s" in block or "prompts" in block:
        displaced.add("tree")
    return {axis: values for axis, values in defaults.items() if axis not in displaced} | dict(block)


def combine(axes: Mapping[str, Sequence[T]]) -> Iterator[dict[str, T]]:
    """Every combination of the axes' values; the axes vary in the order of `AXES`, the first slowest."""
    names = [name for name in AXES if name in axes]
    for values in itertools.product(*(axes[name] for name in names)):
        yield dict(zip(names, values, strict=True))


def shared_tokens(n_s: Any, n_p: Any) -> Fraction | None:
    """Number of tokens that n_s means, possibly not whole; None if n_s is absent, or a share of a range."""
    if isinstance(n_s, str):
        return parse_share(n_s) * n_p if isinstance(n_p, int) else None
    return None if n_s is None else Fraction(n_s)


def matches(accepted: Mapping[str, Sequence[AxisValue]], values: Mapping[str, Any]) -> bool:
    """Whether a combination, or the fields of a point, has an accepted value on every axis of a filter."""
    return all(
        any(_value(axis, {**values, axis: value}) == _value(axis, values) for value in choices)
        for axis, choices in accepted.items()
    )


def _value(axis: str, values: Mapping[str, Any]) -> Any:
    if axis == "n_s":
        return shared_tokens(values.get("n_s"), values.get("n_p"))
    if axis == "kv_heads" and "kv_heads" not in values:
        return values.get("heads", AXES["heads"].default)
    if axis == "batch_size" and "batch_size" not in values and "tree" in values:
        return sequences_in(values["tree"])
    return values.get(axis, AXES[axis].default)


def resolve(values: Mapping[str, AxisValue]) -> dict[str, Any]:
    """Fields of the point for a valid combination; `dtype` may still be auto, `device` is absent."""
    fields: dict[str, Any] = {name: axis.default for name, axis in AXES.items()} | dict(values)
    fields["kv_heads"] = _value("kv_heads", values)
    fields["batch_size"] = _value("batch_size", values)
    if isinstance(fields["n_p"], LengthRange):
        fields["n_p"] = (fields["n_p"].low, fields["n_p"].high)
    if fields["model"] is not None:
        fields["model"] = shape = shape_of(cast(str, values["model"]))
        fields["heads"], fields["kv_heads"] = shape.num_attention_heads, shape.num_key_value_heads
        fields["head_dim"] = shape.head_dim
    if fields["n_p"] is None:  # traffic decides the lengths
        fields["n_p"] = fields["n_c"] = 0
        fields["n_s"] = fields["n_s"] or 0
    elif fields["tree"] is None:
        fields["n_s"] = int(cast(Fraction, shared_tokens(fields["n_s"], fields["n_p"])))
    return fields


def wrong_prompts(values: Mapping[str, AxisValue]) -> Iterator[Finding]:
    """Conflicts in one combination of axes; a finding's path begins with the axis to blame."""
    n_p = cast("int | LengthRange", values["n_p"])
    shortest, longest = (n_p.low, n_p.high) if isinstance(n_p, LengthRange) else (n_p, n_p)
    prompt = f"the shortest prompt, n_p low = {shortest}" if isinstance(n_p, LengthRange) else f"n_p = {n_p}"
    if "tree" in values:
        yield from _wrong_tree(values, shortest, prompt)
    else:
        yield from _wrong_share(values["n_s"], n_p, shortest, prompt)
    sequences = _value("batch_size", values)
    if _value("prompts", values) > sequences:
        message = f"{values['prompts']} is larger than batch_size = {sequences}: some prompts would have no sequence"
        yield Finding(("prompts",), message)
    heads, kv_heads = _value("heads", values), _value("kv_heads", values)
    if heads % kv_heads:
        yield Finding(("kv_heads",), f"{kv_heads} does not divide heads = {heads}")
    tokens = sequences * (longest + _value("n_c", values))
    if tokens > MAX_INDEX:
        yield Finding(("n_p",), f"batch_size * (n_p + n_c) = {tokens} tokens; more than {MAX_INDEX} cannot be indexed")


def _wrong_share(n_s: AxisValue, n_p: int | LengthRange, shortest: int, prompt: str) -> Iterator[Finding]:
    shared = shared_tokens(n_s, n_p)
    if shared is None:
        yield Finding(("n_s",), f"{n_s!r} is a share of n_p, so n_p must be one number, not a range")
    elif shared.denominator != 1:
        yield Finding(
            ("n_s",), f"{n_s!r} of n_p = {n_p} is {float(shared):g} tokens; it must be a whole number of tokens"
        )
    elif shared > shortest:
        yield Finding(("n_s",), f"{n_s} is larger than {prompt}: shared tokens are part of the prompt")


def _wrong_tree(values: Mapping[str, AxisValue], shortest: int, prompt: str) -> Iterator[Finding]:
    forest = cast(Forest, values["tree"])
    for axis in ("n_s", "prompts"):
        if axis in values:
            yield Finding((axis,), "cannot be used together with tree, which replaces it; keep one", True)
    for path, tokens in tree_paths(forest):
        if tokens > shortest:
            yield Finding(("tree", *path), f"{tokens} tokens down to here are more than {prompt}")
    sequences = sequences_in(forest)
    if sequences > MAX_SEQUENCES:
        yield Finding(("tree",), f"holds {sequences} sequences; more than {MAX_SEQUENCES} are refused")
    if values.get("batch_size", sequences) != sequences:
        message = f"{values['batch_size']} disagrees with tree, which holds {sequences} sequences; leave it out"
        yield Finding(("batch_size",), message)


def check_sweep(
    defaults: object, blocks: object, exclude: object, rules: SweepRules, *, report_unused: bool = True
) -> Iterator[Finding]:
    """All conflicts in a sweep as the file writes it; paths begin with `defaults`, `sweep` or `exclude`.

    `rules` are those of the kind of work. Values that cannot be read are skipped: reading them reports them.
    `report_unused` also reports filters that match no combination.
    """
    common, common_readable = _located(defaults if defaults is not None else {}, ("defaults",))
    filters = _filters(exclude)
    used: set[int] = set()
    total = remaining = 0
    complete = common_readable
    reported: set[Path] = set()
    foreign = list(_foreign(rules, defaults, ("defaults",)))
    for index, raw in enumerate(blocks if isinstance(blocks, list | tuple) else ()):
        place: Path = ("sweep", index)
        foreign += _foreign(rules, raw, place)
        block, readable = _located(raw, place)
        implied = {axis: ((*place, axis), value) for axis, value in rules.implied.items()}
        (merged,) = blocks_of(common, [block], implied)
        axes = {axis: values for axis, values in merged.items() if values or axis not in INDEPENDENT}
        complete &= readable
        missing = [required for required in rules.required if not required.axes & axes.keys()]
        if common_readable and readable:
            yield from (Finding(place, required.message) for required in missing)
        if foreign or missing or not all(axes.values()):
            complete = False
            continue
        total += math.prod(map(len, axes.values()))
        if total > MAX_POINTS:
            yield Finding(place, f"the sweep has {total} combinations up to here; more than {MAX_POINTS} are refused")
            return
        for combination in combine(axes):
            values = {axis: value for axis, (_, value) in combination.items()}
            matching = {number for number, accepted in filters.items() if matches(accepted, values)}
            used |= matching
            if matching:
                continue
            remaining += 1
            for finding in rules.wrong(values):
                path = _place(finding.path, combination, place)
                if path not in reported:
                    reported.add(path)
                    yield Finding(path, finding.message, finding.key)
    yield from foreign
    if not complete:
        return
    if report_unused:
        # A filter on dtype may match only once auto is resolved.
        for number in filters.keys() - used:
            if "dtype" not in filters[number]:
                yield Finding(("exclude", number), "matches no combination of the sweep")
    if total and not remaining:
        yield Finding(("exclude",), "removes every combination; no points are left", True)


def _located(raw: object, place: Path) -> tuple[dict[str, list[tuple[Path, AxisValue]]], bool]:
    """Readable values of a block's axes with their paths, and whether all values could be read."""
    if not isinstance(raw, Mapping):
        return {}, False
    axes: dict[str, list[tuple[Path, AxisValue]]] = {}
    readable = True
    for name, value in raw.items():
        if name not in AXES:
            readable = False
            continue
        values, findings = parse_axis(name, value)
        axes[name] = [((*place, name, *path), value) for path, value in values]
        readable &= not findings
    return axes, readable


def _filters(raw: object) -> dict[int, dict[str, tuple[AxisValue, ...]]]:
    """Index -> filter, for the filters that can be read."""
    filters = {}
    for index, item in enumerate(raw if isinstance(raw, list | tuple) else ()):
        try:
            filters[index] = parse_axes(item)
        except Findings:
            continue
    return filters


def _foreign(rules: SweepRules, raw: object, place: Path) -> Iterator[Finding]:
    """Findings about axes that experiments of this kind cannot have."""
    for axis in raw if isinstance(raw, Mapping) else ():
        if axis in rules.foreign:
            yield Finding((*place, axis), rules.foreign[axis], True)


def _place(path: Path, combination: Mapping[str, tuple[Path, AxisValue]], block: Path) -> Path:
    """The path of the value to blame. For an axis left to its default: the axis that decides it, or the block."""
    axis = cast(str, path[0])
    if axis == "kv_heads" and axis not in combination:
        axis = "heads"
    return (*combination[axis][0], *path[1:]) if axis in combination else block
