"""Expands the sweep of an experiment into combinations of axes.

The lists of one block are combined with each other. The combinations of all blocks are added. `exclude` removes
combinations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from chunkbench.bench import workload
from chunkbench.bench.experiment.axes import AXES, read_axis
from chunkbench.bench.experiment.findings import Finding, Path, only_for, unknown
from chunkbench.bench.experiment.point import Point
from chunkbench.bench.experiment.terms import Device, Dtype
from chunkbench.bench.experiment.tree import Forest, has_lengths, resolved
from chunkbench.bench.experiment.values import AxisValue, LengthRange, Share
from chunkbench.latent import LatentShape

MAX_POINTS = 10_000
INDEPENDENT = ("head_dim", "chunk_size", "block_size", "dtype", "threads")
"""Axes whose values do not depend on any other axis."""
Filter = Mapping[str, Sequence[AxisValue]]
"""Axis -> accepted values. A combination matches if each axis has an accepted value."""
_Located = dict[str, list[tuple[Path, AxisValue]]]
"""Axis -> readable values, each with its path in the file."""


class Required(NamedTuple):
    """A condition: the defaults or each block must give at least one of `axes`. Otherwise `message` is reported."""

    axes: frozenset[str]
    message: str


class Rules(NamedTuple):
    """What a kind of work requires of the axes in its experiments. `Experiment` explains the fields."""

    required: Sequence[Required]
    refused: Mapping[str, str]
    conflicts: Callable[[Mapping[str, Any], Mapping[str, Any]], Iterator[Finding]]


def selects(accepted: Filter, values: Mapping[str, Any]) -> bool:
    """Whether these values of axes match a filter. Axes that `values` lacks are ignored."""
    return all(
        any(_same(axis, value, values) for value in choices) for axis, choices in accepted.items() if axis in values
    )


def _same(axis: str, wanted: AxisValue, values: Mapping[str, Any]) -> bool:
    if isinstance(wanted, Share):
        return values[axis] is not None and wanted.tokens(values.get("n_p")) == values[axis]
    if isinstance(wanted, LengthRange):
        return bool(values[axis] == (wanted.low, wanted.high))
    if axis == "tree" and has_lengths(cast(Forest, wanted)):
        return (values.get("n_p"), values[axis]) == resolved(cast(Forest, wanted))
    if isinstance(wanted, LatentShape):
        same = values[axis] == wanted.model_copy(update={"heads": None})
        return same and wanted.heads in (None, values.get("heads"))
    if axis == "projections" and wanted == "apart":  # as points write it
        return values[axis] is None
    return bool(values[axis] == wanted)


def read_filter(raw: object, place: Path, known: Collection[str] = AXES) -> tuple[Filter, list[Finding]]:
    """Read a filter from a file or a manifest. Returns the filter and the findings about it.

    `known`: the axes that the filter may have. If `raw` is not a mapping, the filter is empty.
    """
    accepted: dict[str, Sequence[AxisValue]] = {}
    findings: list[Finding] = []
    for name, value in raw.items() if isinstance(raw, Mapping) else ():
        if name not in known:
            findings.append(Finding((*place, name), _not_here(name), True))
            continue
        values, value_findings = read_axis(name, value)
        findings += [finding.below(*place, name) for finding in value_findings]
        accepted[name] = [value for _, value in values]
    return accepted, findings


def _not_here(axis: str) -> str:
    """The message about an axis that no kind of work has, or only other kinds."""
    if axis not in AXES:
        return unknown("axis", axis, list(AXES))
    return only_for([kind.name for kind in workload.all_kinds() if axis in kind.point.axes()])


def lengths_given(trees: Iterable[tuple[Path, AxisValue]]) -> set[bool]:
    """A set that says how the trees are written. It contains True if a tree lists the private tokens of its sequences,
    and False if a tree does not."""
    return {has_lengths(cast(Forest, tree)) for _, tree in trees}


def merged(defaults: _Located, block: _Located) -> _Located:
    """Add the defaults to the axes of a block.

    A `tree` in the block removes the defaults of n_s and prompts. A tree that lists private tokens also removes the
    default of n_p. n_s or prompts in the block removes a default tree.
    """
    displaced: set[str] = set()
    if "tree" in block:
        displaced |= {"n_s", "prompts"}
        displaced |= {"n_p"} if True in lengths_given(block["tree"]) else set()
    if "n_s" in block or "prompts" in block:
        displaced.add("tree")
    return {axis: values for axis, values in defaults.items() if axis not in displaced} | dict(block)


@dataclass
class Sweep:
    """Reads the sweep of an experiment: first each value, then each combination.

    Values of a wrong type are reported by the pydantic model, not here.
    """

    point: type[Point]
    rules: Rules
    filters: dict[int, Filter] = field(default_factory=dict)
    """Index in `exclude` -> filter, for the filters that could be read."""
    combinations: list[dict[str, Any]] = field(default_factory=list)
    """The combinations, each with the values of all axes. The dtype may be `auto`."""
    findings: list[Finding] = field(default_factory=list)
    """All problems found by `read`. The path of each one begins with `defaults`, `sweep` or `exclude`."""

    def read(self, defaults: object, blocks: object, exclude: object, report_unused: bool) -> None:
        """Read `defaults`, `sweep` and `exclude` of a file. If `report_unused`, a filter that matches nothing is a
        finding."""
        common, common_readable = self._values({} if defaults is None else defaults, ("defaults",))
        self._read_filters(exclude)
        used: set[int] = set()
        complete, total = common_readable, 0
        for index, raw in enumerate(blocks if isinstance(blocks, list | tuple) else ()):
            place: Path = ("sweep", index)
            block, readable = self._values(raw, place)
            axes = merged(common, block)
            lengths = lengths_given(axes.get("tree", ()))
            known = axes.keys() | ({"n_p"} if True in lengths else set())
            missing = [requirement for requirement in self.rules.required if not requirement.axes & known]
            if common_readable and readable:
                self.findings += [Finding(place, requirement.message) for requirement in missing]
            # Conflicts are also searched among the values that could be read.
            axes = {axis: values for axis, values in axes.items() if values or axis not in INDEPENDENT}
            usable = not missing and all(axes.values()) and axes.keys() <= set(self.point.axes())
            for finding in _length_conflicts(
                lengths, {axis: place if axis in block else ("defaults",) for axis in axes}
            ):
                self.findings.append(finding)
                usable = False
            complete &= readable and usable
            if not usable:
                continue
            total += math.prod(map(len, axes.values()))
            if total > MAX_POINTS:
                message = f"the sweep has {total} combinations up to here; more than {MAX_POINTS} are refused"
                self.findings.append(Finding(place, message))
                return
            self._combine(axes, place, used)
        if complete and report_unused:
            # A filter on dtype may match only once auto is resolved.
            unused = [n for n, accepted in self.filters.items() if n not in used and "dtype" not in accepted]
            self.findings += [Finding(("exclude", n), "matches no combination of the sweep") for n in unused]
        if complete and total and not self.combinations and not self.findings:
            self.findings.append(Finding(("exclude",), "removes every combination; no points are left", True))

    def _combine(self, axes: _Located, place: Path, used: set[int]) -> None:
        """Add the combinations of a block; the axes vary in the order of `AXES`, the first slowest."""
        names = [name for name in AXES if name in axes]
        for chosen in itertools.product(*(axes[name] for name in names)):
            located = dict(zip(names, chosen, strict=True))
            given = _with_lengths({name: value for name, (_, value) in located.items()})
            values = self.point.completed(given)
            matching = {number for number, accepted in self.filters.items() if selects(accepted, values)}
            used |= matching
            if matching:
                continue
            conflicts = [
                Finding(_blamed(finding.path, located, place), finding.message, finding.key)
                for finding in self.rules.conflicts(given, values)
            ]
            if conflicts:
                self._report(conflicts)
            else:
                self.combinations.append(values)

    def _report(self, conflicts: Collection[Finding]) -> None:
        """Report each place only once, although the same wrong value is in many combinations."""
        places = {finding.path for finding in self.findings}
        for finding in conflicts:
            if finding.path not in places:
                places.add(finding.path)
                self.findings.append(finding)

    def _values(self, raw: object, place: Path) -> tuple[_Located, bool]:
        """The values of a block's axes that can be read, and whether the whole block could be read."""
        if not isinstance(raw, Mapping):
            return {}, False
        readable = True
        axes: _Located = {}
        for name, value in raw.items():
            if name not in self.point.axes():
                self.findings.append(Finding((*place, name), self.rules.refused.get(name, _not_here(name)), True))
            if name not in AXES:
                readable = False
                continue
            values, findings = read_axis(name, value)
            readable &= not findings
            axes[name] = [((*place, name, *path), value) for path, value in values]
            self.findings += [finding.below(*place, name) for finding in findings]
        return axes, readable

    def _read_filters(self, exclude: object) -> None:
        for index, item in enumerate(exclude if isinstance(exclude, list | tuple) else ()):
            accepted, findings = read_filter(item, ("exclude", index), self.point.axes())
            self.findings += findings
            if not findings and isinstance(item, Mapping):
                self.filters[index] = accepted

    def points(self, device: Device, auto: Dtype, usual: Dtype) -> Iterator[Point]:
        """The points on a device, in the order of the file.

        `auto`: the dtype that replaces the text `auto` of a file. `usual`: the dtype of combinations for which the file
        gives no dtype.
        """
        for values in self.combinations:
            dtype = {None: usual, "auto": auto}.get(values["dtype"], values["dtype"])
            resolved = {**values, "device": device, "dtype": dtype}
            # Again: a filter on dtype may match only now.
            if not any(selects(accepted, resolved) for accepted in self.filters.values()):
                yield self.point.model_validate(resolved)


def _length_conflicts(lengths: set[bool], places: Mapping[str, Path]) -> Iterator[Finding]:
    """Conflicts of a block's trees with each other and with n_p; `places` has the path of each axis of the block."""
    if len(lengths) > 1:
        message = "some of these trees have private tokens, others numbers of sequences; use a block for each sort"
        yield Finding((*places["tree"], "tree"), message)
    elif True in lengths and "n_p" in places:
        message = "follows from tree, which lists the private tokens of its sequences; leave n_p out, or give numbers"
        yield Finding((*places["n_p"], "n_p"), f"{message} of sequences in tree", True)


def _with_lengths(given: dict[str, Any]) -> dict[str, Any]:
    """The combination; if its tree has private lengths, with the n_p and the tree of the point."""
    if "tree" not in given or not has_lengths(given["tree"]):
        return given
    n_p, tree = resolved(given["tree"])
    return given | {"n_p": n_p if isinstance(n_p, int) else LengthRange(*n_p), "tree": tree}


def _blamed(path: Path, located: Mapping[str, tuple[Path, AxisValue]], block: Path) -> Path:
    """The path of the value to blame. If the axis has its default: the path of the axis that decides the default, or of
    the block."""
    axis = str(path[0])
    if axis == "kv_heads" and axis not in located:
        axis = "heads"
    if axis == "n_p" and axis not in located:
        axis = "tree"
    return (*located[axis][0], *path[1:]) if axis in located else block
