"""Loads an `Experiment` from a file or by the name of a bundled one, and reports all its problems."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from chunkbench.experiment.axes import AXES
from chunkbench.experiment.check import Checker
from chunkbench.experiment.errors import ExperimentError, Problem, did_you_mean
from chunkbench.experiment.model import Experiment
from chunkbench.experiment.values import show, unknown
from chunkbench.experiment.yaml_tree import MAX_BYTES, Node, read

_SUFFIXES = (".yaml", ".yml")


def bundled_experiments() -> dict[str, Any]:
    """Name -> file, for every experiment that comes with ChunkBench."""
    folder = resources.files("chunkbench.experiments")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    return {file.name.removesuffix(".yaml"): file for file in files}


READING_ORDER = (
    "quick", "smoke", "table1", "memory", "table3", "figure3", "figure4", "table4", "figure5", "table3-llama3",
    "table3-gpu", "no-tpp", "break-even", "chunk-size", "heads", "prompts", "authors", "cpu-kernels", "gpu-kernels",
    "table4-ablations", "table4-caching", "table4-full", "table4-gpu", "vllm-plugin", "replay-managers",
    "replay-caches", "replay-forks", "replay-table4", "gate",
)  # fmt: skip
"""Experiments in the order in which reports show them: the paper's tables and figures, then what explains them."""


def reading_order(name: str) -> tuple[int, str]:
    """A sort key: the place of an experiment in reports; unknown ones come last, by name."""
    return (READING_ORDER.index(name) if name in READING_ORDER else len(READING_ORDER), name)


def load_experiment(path: Path | str, overrides: Mapping[str, str] | None = None, option: str = "") -> Experiment:
    """The experiment in a YAML file, or the bundled one of that bare name (`table3`).

    `overrides` is axis -> text such as `v1,v2`: the axis takes these values in every block. Messages use `option` as
    the name of an override's place.
    Raises `ExperimentError` with all problems, and no other exception, whatever the file contains.
    """
    name, shown, content = _find(path)
    text = _decode(content, shown)
    root, problems = read(text, shown)
    if root is None or root.value is None:
        raise ExperimentError(problems or [Problem(shown, 1, 1, "the file is empty; it holds no experiment")])
    if not isinstance(root.value, dict):
        message = f"an experiment is a mapping of keys to values, not {show(root.plain())}"
        raise ExperimentError([*problems, Problem(shown, root.at.line, root.at.column, message)])
    problems += _override(root, overrides or {}, option)
    checker = Checker(root, problems, report_unused=not overrides)
    experiment = checker.experiment(re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._")[:64] or "experiment")
    if experiment is None:
        raise ExperimentError(checker.problems)
    return experiment.model_copy(update={"source": text, "path": shown})


def _find(path: Path | str) -> tuple[str, str, bytes]:
    """Default name of the experiment, path to show in messages, and content of the file."""
    given = str(path)
    is_name = isinstance(path, str) and re.fullmatch(r"[A-Za-z0-9_-]+", path) is not None and not Path(path).is_file()
    try:
        if is_name:
            bundled = bundled_experiments()
            if given not in bundled:
                problem = f"no experiment of this name comes with ChunkBench{did_you_mean(given, list(bundled))}"
                raise ExperimentError([Problem(given, 0, 0, problem)])
            return given, f"{given}.yaml", bundled[given].read_bytes()
        file = Path(path)
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


def _neighbour(file: Path) -> str:
    """A hint: a file with a similar name, or the list of bundled experiments."""
    folder = file.parent
    neighbours = [other.name for other in folder.iterdir() if other.suffix in _SUFFIXES] if folder.is_dir() else []
    hint = did_you_mean(file.name, neighbours)
    if "did you mean" in hint:
        return hint
    return f"; the bundled experiments are {', '.join(bundled_experiments())}"


def _decode(content: bytes, path: str) -> str:
    for byte_order_mark, encoding in (
        (codecs.BOM_UTF32_LE, "UTF-32"),
        (codecs.BOM_UTF16_LE, "UTF-16"),
        (codecs.BOM_UTF16_BE, "UTF-16"),
    ):
        if content.startswith(byte_order_mark):
            raise ExperimentError([Problem(path, 1, 1, f"the file is in {encoding}; save it as UTF-8")])
    content = content.removeprefix(codecs.BOM_UTF8)
    try:
        text = content.decode("utf-8")
        binary = text.find("\0")
    except UnicodeDecodeError as error:
        text, binary = content[: error.start].decode("utf-8"), error.start
    if binary >= 0:
        before = text[:binary]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise ExperimentError([Problem(path, line, column, "not text in UTF-8; is this a binary file?")])
    return text


def _override(root: Node, overrides: Mapping[str, str], option: str) -> list[Problem]:
    """Replace the file's values by the overriding values, in the tree; returns the problems."""
    problems: list[Problem] = []
    for axis, text in overrides.items():
        place = f"{option} {axis}={text}".strip()
        if axis not in AXES:
            problems.append(Problem(place, 0, 0, unknown("axis", axis, list(AXES)), axis))
            continue
        node, node_problems = read(text if text.lstrip().startswith("[") else f"[{text}\n]", place, line=0)
        problems += node_problems
        if node is None:
            continue
        conflicting = {"tree": ("n_s", "prompts"), "n_s": ("tree",), "prompts": ("tree",)}.get(axis, ())
        blocks = [root.child("defaults"), *_items(root.child("sweep"))]
        for block in blocks:
            if block is None or not isinstance(block.value, dict):
                continue
            block.value.pop(axis, None)
            for other in conflicting:
                if other in block.value:
                    mark = block.value[other][0]
                    problems.append(Problem(place, 0, 0, f"cannot be used together with {other} in {mark}", axis))
        if blocks[0] is None:
            root.value["defaults"] = (node.at, Node(node.at, {axis: (node.at, node)}))
        elif isinstance(blocks[0].value, dict):
            blocks[0].value[axis] = (node.at, node)
    return problems


def _items(node: Node | None) -> list[Node]:
    return node.value if node is not None and isinstance(node.value, list) else []
