"""The cases of a run for programs: all facts and all derived figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from chunkbench.analysis.derive import Derived, Group, Row
from chunkbench.analysis.expectations import ExpectationOutcome
from chunkbench.experiment.axes import AXES
from chunkbench.store.results import Result

_SCALARS = (str, int, float, bool, type(None))


def _single(annotation: Any) -> bool:
    """Whether a value of this type is a single one, which fits a cell."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _single(parts[0])
    if origin in (Union, UnionType):
        return all(map(_single, parts))
    return origin is Literal or annotation in _SCALARS


def columns(result: type[Result]) -> tuple[str, ...]:
    """Names, axes, facts with a single value, derived figures. All other facts are in `cases.jsonl` and in the JSON
    report."""
    facts = result.model_fields
    named = [name for name in ("key", "experiment", "implementation", "label", *AXES) if name in facts]
    single = [name for name, field in facts.items() if _single(field.annotation)]
    return tuple(dict.fromkeys((*named, *single, *(field.name for field in fields(Derived)))))


def records(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """The `columns` of each case, in the order of the points."""
    rows = [row for group in groups for row in group.rows.values()]
    # The model's name, not its shape.
    values = ((type(row.facts), {**row.as_dict(), "model": row.facts.axis("model")}) for row in rows)
    return [{name: record[name] for name in columns(result)} for result, record in values]


def data(rows: Sequence[Row], outcomes: Sequence[ExpectationOutcome]) -> list[dict[str, Any]]:
    """All of each case, in the order of the rows; `expectations` lists the outcomes of its expectations."""
    return [_case(row.as_dict(), outcomes) for row in rows]


def _case(values: dict[str, Any], outcomes: Sequence[ExpectationOutcome]) -> dict[str, Any]:
    expectations = [asdict(outcome) for outcome in outcomes if outcome.key == values["key"]]
    for outcome in expectations:
        del outcome["key"], outcome["axes"]
    return {**values, "expectations": expectations}
