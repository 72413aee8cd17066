"""Validates a YAML tree against the model and reports every problem with its place, in plain words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from chunkbench import kinds
from chunkbench.experiment.errors import Mark, Problem, did_you_mean
from chunkbench.experiment.model import Experiment, yaml_keys
from chunkbench.experiment.reading import reading
from chunkbench.experiment.sweep import check_sweep
from chunkbench.experiment.timed import Expectation, TimedExperiment
from chunkbench.experiment.values import Finding, Findings, Path, show, unknown
from chunkbench.experiment.yaml_tree import Node

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_WANTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}
_SWEPT = ("defaults", "sweep", "exclude")


class Checker:
    """Validates a tree and collects its problems. `report_unused` also reports filters that match nothing."""

    def __init__(self, root: Node, problems: list[Problem], *, report_unused: bool) -> None:
        self.root = root
        self.problems = problems
        self.report_unused = report_unused
        # A value that could not be read already has its problem; what the model says about it adds nothing.
        self.reported = {Mark(problem.path, problem.line, problem.column) for problem in problems if problem.line}

    def experiment(self, name: str) -> Experiment | None:
        """The experiment, or None if it has a problem. `name` is its name unless the file gives one."""
        plain = self.root.plain()
        kind_reading = reading(_kind(plain.get("kind")))
        keys = yaml_keys(kind_reading.experiment)
        for key in [key for key in self.root.value if key not in keys]:
            mark = self.root.value.pop(key)[0]
            self._add(mark, unknown("key", key, list(keys)), key)
            del plain[key]
        defaults, blocks, exclude = (plain.get(key) for key in _SWEPT)
        self._findings((), check_sweep(defaults, blocks, exclude, kind_reading.rules, report_unused=self.report_unused))
        try:
            # A context tells the validators that the values come from a file, where durations must have a unit.
            experiment = kind_reading.experiment.model_validate({"name": name, **plain}, context={})
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                self._complaint(detail)
            return None
        if self.report_unused:
            self._findings((), _unused_expectations(experiment))
        return None if self.problems else experiment

    def _add(self, mark: Mark, message: str, key: str) -> None:
        if mark not in self.reported:
            self.problems.append(Problem(mark.path, mark.line, mark.column, message, key))

    def _findings(self, path: Path, findings: Iterable[Finding]) -> None:
        for finding in findings:
            place = (*path, *finding.path)
            key = next((str(step) for step in reversed(place) if isinstance(step, str)), "")
            self._add(self.root.mark(place, key=finding.key), finding.message, key)

    def _complaint(self, error: ErrorDetails) -> None:
        about_key = error["loc"][-1:] == ("[key]",)
        path: Path = tuple(step for step in error["loc"] if step != "[key]")
        cause = error.get("ctx", {}).get("error")
        if isinstance(cause, Findings):
            # Findings about the sweep come from check_sweep, which knows their places in the tree.
            self._findings(path, [finding for finding in cause.findings if path or finding.path[0] not in _SWEPT])
        elif error["type"] == "missing":
            mark = self.root.mark(path[:-1])
            self._add(mark, "is missing", str(path[-1]))
        elif error["type"] == "extra_forbidden":
            self._findings(path, [Finding((), unknown("key", path[-1], list(Expectation.model_fields)), True)])
        else:
            self._findings(path, [Finding((), _in_words(error), about_key)])


def _kind(raw: object) -> str:
    """The kind that the file names. An unknown kind gives the first known one; the model reports the unknown one."""
    return raw if isinstance(raw, str) and raw in kinds.names() else kinds.names()[0]


def _in_words(error: ErrorDetails) -> str:
    kind, value = error["type"], error["input"]
    context: dict[str, Any] = error.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind in _WANTED and value is None:
        return "has no value; give one or leave the key out"
    if kind in _WANTED:
        quoted = "; put it in quotes" if kind == "string_type" and isinstance(value, bool | int | float) else ""
        return f"must be {_WANTED[kind]}, not {show(value)}{quoted}"
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        hint = did_you_mean(value[:60], choices) if isinstance(value, str) else f"; one of {', '.join(choices)}"
        return f"{show(value)} is not known here{hint}"
    if kind == "string_pattern_mismatch":
        return f"{show(value)} may hold only lower-case letters, digits, dots, dashes and underscores, at most 64"
    return f"{show(value)} {error['msg'].removeprefix('Input ').removeprefix('String ')}"


def _unused_expectations(experiment: Experiment) -> Iterator[Finding]:
    """Expectations that match no point, which must be a mistake. A filter on dtype is skipped: it may be auto."""
    if not isinstance(experiment, TimedExperiment):
        return
    points = experiment.points("cpu", "float32")
    for index, expectation in enumerate(experiment.expect):
        if "dtype" not in expectation.where and not any(expectation.applies_to(point) for point in points):
            yield Finding(("expect", index, "where"), "matches no point of the sweep")
