"""Turns the cases of a run into data for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from chunkbench.bench.analysis.derive import Derived, Group, Row
from chunkbench.bench.analysis.expectations import ExpectationOutcome
from chunkbench.bench.experiment.axes import AXES
from chunkbench.bench.store.results import Result
from chunkbench.report.metric import Metric

_SCALARS = (str, int, float, bool, type(None))


def _single(annotation: Any) -> bool:
    """Whether a value of this type is a single value, which fits a cell."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _single(parts[0])
    if origin in (Union, UnionType):
        return all(map(_single, parts))
    return origin is Literal or annotation in _SCALARS


def added(result: type[Result], metrics: Mapping[str, Metric]) -> list[Metric]:
    """The metrics whose names are not names of facts or derived figures. A name `x_us` also excludes the metric `x`."""
    names = {*result.model_fields, *(field.name for field in fields(Derived))}
    return [metric for metric in metrics.values() if not {metric.name, f"{metric.name}_us"} & names]


def values(row: Row, metrics: Mapping[str, Metric]) -> dict[str, Any]:
    """Name -> value, for all facts, derived figures and figures of the kind of work."""
    return row.as_dict() | {metric.name: metric.value(row.facts) for metric in added(type(row.facts), metrics)}


def columns(result: type[Result], metrics: Mapping[str, Metric]) -> tuple[str, ...]:
    """Names of the CSV columns. Facts with several values are left out; `cases.jsonl` and the JSON report have them."""
    facts = result.model_fields
    named = [name for name in ("key", "experiment", "implementation", "label", *AXES) if name in facts]
    single = [name for name, field in facts.items() if _single(field.annotation)]
    figures = (*(field.name for field in fields(Derived)), *(metric.name for metric in added(result, metrics)))
    return tuple(dict.fromkeys((*named, *single, *figures)))


def records(groups: Sequence[Group], metrics: Mapping[str, Metric]) -> list[dict[str, Any]]:
    """The CSV records: column -> value for each case, in the order of the points."""
    rows = [row for group in groups for row in group.rows.values()]
    # A cell has the model's name, not its shape.
    found = ((type(row.facts), {**values(row, metrics), "model": row.facts.axis("model")}) for row in rows)
    return [{name: record[name] for name in columns(result, metrics)} for result, record in found]


def data(
    rows: Sequence[Row], outcomes: Sequence[ExpectationOutcome], metrics: Mapping[str, Metric]
) -> list[dict[str, Any]]:
    """The JSON data: all values of each case, and under `expectations` the outcomes of the case's expectations."""
    return [_case(values(row, metrics), outcomes) for row in rows]


def _case(case: dict[str, Any], outcomes: Sequence[ExpectationOutcome]) -> dict[str, Any]:
    expectations = [asdict(outcome) for outcome in outcomes if outcome.key == case["key"]]
    for outcome in expectations:
        del outcome["key"], outcome["axes"]
    return {**case, "expectations": expectations}
