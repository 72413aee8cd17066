"""Loads an `Experiment` from a file or by the name of a bundled one, and reports all its problems."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from chunkbench.bench import workload
from chunkbench.bench.experiment.axes import AXES, read_axis
from chunkbench.bench.experiment.findings import ExperimentError, Findings, Path, Problem, show, unknown
from chunkbench.bench.experiment.point import Point
from chunkbench.bench.experiment.spec import Experiment
from chunkbench.bench.experiment.sweep import Filter, lengths_given, read_filter
from chunkbench.bench.experiment.yaml_file import MAX_BYTES, YamlDocument, read
from chunkbench.text_file import TextError, decode, did_you_mean

_SUFFIXES = (".yaml", ".yml")


def bundled_experiments() -> dict[str, Any]:
    """Name -> file, for every experiment that comes with ChunkBench."""
    folder = resources.files("chunkbench.experiments")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    return {file.name.removesuffix(".yaml"): file for file in files}


def reading_order(name: str) -> tuple[float, str]:
    """A sort key for names of experiments: bundled experiments by their key `order`, then all others by name.

    The function reads one line of the file, because loading all experiments takes seconds.
    """
    file = bundled_experiments().get(name)
    order = re.search(r"^order: (\d+)$", file.read_text(encoding="utf-8"), re.MULTILINE) if file else None
    return (int(order[1]) if order else math.inf, name)


def load_experiment(
    path: FilePath | str, overrides: Mapping[str, str] | None = None, option: str = ""
) -> Experiment[Any]:
    """Load the experiment from a YAML file, or the bundled experiment with this name (`table3`).

    `overrides`: axis -> text such as `v1,v2`. The axis takes these values in every block. `option`: the command-line
    option that messages about overrides name. Raises `ExperimentError` with all problems, and no other exception.
    """
    name, shown, content = _find(path)
    try:
        text = decode(content, shown)
    except TextError as error:
        raise ExperimentError([Problem(shown, error.line, error.column, error.message)]) from None
    document = read(text, shown)
    if document.value is None:
        raise ExperimentError(document.problems or [Problem(shown, 1, 1, "the file is empty; it holds no experiment")])
    if not isinstance(document.value, dict):
        document.problem(document.mark(()), f"an experiment is a mapping of keys to values, not {show(document.value)}")
        raise ExperimentError(document.problems)
    _override(document, overrides or {}, option)
    kind = document.value.get("kind")
    model = workload.get(kind if kind in workload.names() else workload.default()).experiment
    named = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._")[:64] or "experiment"
    try:
        experiment: Experiment[Any] = model.model_validate(
            {"name": named, **document.value}, context={"overridden": bool(overrides)}
        )
    except ValidationError as error:
        raise ExperimentError([*document.problems, *_located(error, document)]) from None
    if document.problems:
        raise ExperimentError(document.problems)
    return experiment.model_copy(update={"source": text, "path": shown})


def read_selection(texts: Mapping[str, str], point: type[Point], option: str) -> Filter:
    """Read a filter for points from texts: axis -> text such as `v1,v2`. Raises `ExperimentError`.

    `point`: the class of the points. `option`: the command-line option that messages name.
    """
    accepted: dict[str, Any] = {}
    problems: list[Problem] = []
    for axis, text in texts.items():
        place = f"{option} {axis}={text}"
        given = _values_of(text, place)
        found, findings = read_filter({axis: given.value}, (), point.axes())
        problems += given.problems or [Problem(place, 0, 0, finding.message, axis) for finding in findings]
        accepted |= found
    if problems:
        raise ExperimentError(problems)
    return accepted


def _values_of(text: str, place: str) -> YamlDocument:
    """The values of an axis, read from the text of an option."""
    return read(text if text.lstrip().startswith("[") else f"[{text}\n]", place, line=0)


def _located(error: ValidationError, document: YamlDocument) -> Iterator[Problem]:
    """Turn the findings of an experiment's class into problems with their places in the file."""
    # A value that could not be read already has its problem; further findings about this value add nothing.
    refused = {(problem.line, problem.column) for problem in document.problems if problem.line}
    for detail in error.errors():
        findings = detail["ctx"]["error"]
        assert isinstance(findings, Findings)
        for finding in findings.findings:
            mark = document.mark(finding.path, key=finding.key)
            if (mark.line, mark.column) not in refused:
                key = next((step for step in reversed(finding.path) if isinstance(step, str)), "")
                yield Problem(mark.path, mark.line, mark.column, finding.message, key)


def _find(path: FilePath | str) -> tuple[str, str, bytes]:
    """Default name of the experiment, path to show in messages, and content of the file."""
    given = str(path)
    is_name = (
        isinstance(path, str) and re.fullmatch(r"[A-Za-z0-9_-]+", path) is not None and not FilePath(path).is_file()
    )
    try:
        if is_name:
            bundled = bundled_experiments()
            if given not in bundled:
                problem = f"no experiment of this name comes with ChunkBench{did_you_mean(given, list(bundled))}"
                raise ExperimentError([Problem(given, 0, 0, problem)])
            return given, f"{given}.yaml", bundled[given].read_bytes()
        file = FilePath(path)
        if file.is_dir():
            raise ExperimentError([Problem(given, 0, 0, "is a directory, not an experiment")])
        if not file.exists():
            raise ExperimentError([Problem(given, 0, 0, f"no such file{_neighbour(file)}")])
        if file.is_file() and file.stat().st_size > MAX_BYTES:
            raise ExperimentError([Problem(given, 0, 0, f"is larger than the limit of {MAX_BYTES} bytes")])
        with file.open("rb") as stream:
            return file.stem, given, stream.read(MAX_BYTES)
    except (OSError, ValueError) as error:
        if isinstance(error, ExperimentError):
            raise
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ExperimentError([Problem(given, 0, 0, f"cannot be read: {reason}")]) from error


def _neighbour(file: FilePath) -> str:
    """A hint: a file with a similar name, or the list of bundled experiments."""
    folder = file.parent
    neighbours = [other.name for other in folder.iterdir() if other.suffix in _SUFFIXES] if folder.is_dir() else []
    hint = did_you_mean(file.name, neighbours)
    if "did you mean" in hint:
        return hint
    return f"; the bundled experiments are {', '.join(bundled_experiments())}"


def _override(document: YamlDocument, overrides: Mapping[str, str], option: str) -> None:
    """Replace the values of the file by the overriding values, in every block.

    A tree also replaces the axes that it determines, such as `batch_size`.
    """
    for axis, text in overrides.items():
        place = f"{option} {axis}={text}".strip()
        if axis not in AXES:
            document.problems.append(Problem(place, 0, 0, unknown("axis", axis, list(AXES)), axis))
            continue
        given = _values_of(text, place)
        document.problems += given.problems
        if given.value is None:
            continue
        blocks: list[tuple[Path, Any]] = [(("defaults",), document.value.get("defaults"))]
        if isinstance(document.value.get("sweep"), list):
            blocks += [(("sweep", index), block) for index, block in enumerate(document.value["sweep"])]
        for path, block in blocks:
            if not isinstance(block, dict):
                continue
            block.pop(axis, None)
            for other in _stated(axis, given.value) - overrides.keys():  # else the forest refuses one
                block.pop(other, None)
            for other in _incompatible(axis, block):
                if other in block:
                    at = document.mark((*path, other), key=True)
                    message = f"cannot be used together with {other} in {at}"
                    document.problems.append(Problem(place, 0, 0, message, axis))
        if "defaults" not in document.value:
            document.value["defaults"] = {}
        if isinstance(document.value["defaults"], dict):
            document.put(("defaults", axis), given)


def _stated(axis: str, raw: object) -> set[str]:
    """The axes that an overriding tree determines."""
    if axis != "tree":
        return set()
    return {"n_s", "prompts", "batch_size", *(["n_p"] if _lists_lengths(raw) else [])}


def _incompatible(axis: str, block: Mapping[str, Any]) -> tuple[str, ...]:
    """The axes of a block that cannot be used together with an overriding value of `axis`."""
    if axis == "n_p":
        return ("tree",) if _lists_lengths(block.get("tree")) else ()
    return ("tree",) if axis in ("n_s", "prompts") else ()


def _lists_lengths(tree: object) -> bool:
    return True in lengths_given(read_axis("tree", tree)[0])
