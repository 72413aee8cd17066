"""Experiments drawn from what the product declares: the axes of a kind's points, and the rows of its registry.

So an axis or a row that comes later is drawn without a change here.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import yaml

from chunkbench import workloads
from chunkbench.bench import workload
from chunkbench.bench.contract import Implementation, supported
from chunkbench.bench.experiment import load_experiment
from chunkbench.bench.experiment.axes import AXES
from chunkbench.bench.experiment.findings import ExperimentError

ATTEMPTS = 200


def value(schema: Mapping[str, Any], chance: Random, words: Sequence[str] = (), parts: Mapping[str, Any] = {}) -> Any:
    """A small value by a JSON schema; None where the schema names none. `words`: texts where any text is allowed.
    `parts`: what the schema refers to."""
    if "$ref" in schema:
        return value(parts.get(schema["$ref"].rpartition("/")[2], {}), chance, words, parts)
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return value(chance.choice(schema[several]), chance, words, parts)
    for listed in ("enum", "examples"):
        if listed in schema:
            return chance.choice(schema[listed])
    match schema.get("type"):
        case "integer":
            low, step = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1), schema.get("multipleOf", 1)
            high = schema.get("maximum", 2**31)
            # Bytes and slots of memory have large values: a run with a few of them would not end.
            few = min(high, low + step * chance.choice((0, 1, 2, 3, 7)))
            return high - chance.randrange(9) if high >= 2**40 else few
        case "object" if "properties" in schema:
            return {name: value(part, chance, words, parts) for name, part in schema["properties"].items()}
        case "array" if words:
            return [value(schema.get("items", {}), chance, words, parts) for _ in range(chance.randint(0, 3))]
        case "string" if words:
            return chance.choice(words)
        case "number":
            return chance.choice((0.0, 0.5, 1.0, 2.0, -1.0))
        case "boolean":
            return chance.random() < 0.5
    return schema.get("const")


@cache
def schemas(kind: str) -> dict[str, Mapping[str, Any]]:
    """Axis -> its schema, of the axes of a kind whose values can be drawn."""
    fields = workload.get(kind).point.model_json_schema()["properties"]
    made = {}
    for name in workload.get(kind).point.axes():
        for schema in (AXES[name].schema, fields[name]):
            if any(value(schema, Random(seed)) is not None for seed in range(9)):
                made[name] = schema
                break
    return made


@cache
def rows(kind: str) -> list[str]:
    """What can run here and starts fast."""
    registry = workload.get(kind).implementations()
    able = [name for name in registry.names() if registry.availability(name, "cpu")[1].ok]
    if kind == "serving":  # other systems take long to start
        return [name for name in able if name.startswith("chunk_llama")]
    return [name for name in able if not registry.load(name).compiles]


def widened(text: str, chance: Random, folder: Path, keep: Collection[str] = ("model",)) -> str:
    """The experiment with another axis, and maybe more, and with as many rows, which support its points. `folder` has
    the files that it names. `keep`: defaults that stay."""
    workloads.register()
    base: dict[str, Any] = yaml.safe_load(text)
    kind = base.get("kind", workload.default())
    given = {name for block in (base["defaults"], *base["sweep"]) for name in block}
    free = {name: schema for name, schema in schemas(kind).items() if name not in given}
    for name in chance.sample(list(free), len(free)):
        for _ in range(ATTEMPTS):
            names = dict.fromkeys([name, *chance.sample(list(free), min(len(free), chance.choice((0, 0, 1, 2))))])
            drawn = {name: value(free[name], chance) for name in names}
            if drawn[name] is None:
                continue
            share = chance.choice((1.0, 0.6))  # a given value may forbid the axis
            kept = {name: one for name, one in base["defaults"].items() if name in keep or chance.random() < share}
            made = {**base, "defaults": kept | {name: one for name, one in drawn.items() if one is not None}}
            if (found := accepted(kind, made, chance, folder)) is not None:
                return found
    raise AssertionError(f"{kind}: no axis can be drawn")


def accepted(kind: str, made: dict[str, Any], chance: Random, folder: Path) -> str | None:
    """The text of an experiment with drawn rows, if it can be measured."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", dir=folder) as file, contextlib.chdir(folder):
        yaml.safe_dump(made, file)
        file.flush()
        try:
            points = load_experiment(Path(file.name)).points("cpu", made.get("dtype", "float32"))
        except ExperimentError:
            return None
    if "implementations" in made:
        able = [name for name in rows(kind) if all(supports(kind, name, point) for point in points)]
        if len(able) < len(made["implementations"]):
            return None
        made["implementations"] = chance.sample(able, len(made["implementations"]))
        made["baseline"] = made["implementations"][0]
    return yaml.safe_dump(made)


def supports(kind: str, row: str, point: Any) -> bool:
    """Whether a row can measure a point, as far as it says so before it measures."""
    loaded = workload.get(kind).implementations().load(row)
    if isinstance(loaded, Implementation):
        return supported(loaded, point).ok
    return not getattr(loaded, "supports", lambda _: "")(point)  # a scheme of a ring says why not
