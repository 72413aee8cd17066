"""Requests from a file of the load's own format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveInt, ValidationError

from chunkbench.traces.request import PlannedRequest


class TraceError(ValueError):
    """A trace cannot be read; the message names file and line."""


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    prompt: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1, strict=False)]
    max_tokens: PositiveInt
    due: NonNegativeFloat | None = None


def read_trace(path: Path) -> tuple[list[PlannedRequest], bool]:
    """Requests of a file, and whether it says when they are due.

    Each line is a JSON object with `prompt` (token ids), `max_tokens` and, in all lines or in none, `due` (seconds
    after the start). Requests without `due` get 0. They are sorted by it. Raises TraceError.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from None
    read = [_line(path, number, text) for number, text in enumerate(lines, 1) if text.strip()]
    if not read:
        raise TraceError(f"{path}: has no request")
    timed = [line.due is not None for line in read]
    if any(timed) and not all(timed):
        raise TraceError(f"{path}: some requests have `due` and some have not; give it to all or to none")
    requests = [PlannedRequest(line.due or 0.0, line.prompt, line.max_tokens) for line in read]
    return sorted(requests, key=lambda request: request.due), all(timed)


def _line(path: Path, number: int, text: str) -> _Line:
    where = f"{path}:{number}"
    try:
        raw: Any = json.loads(text)
    except ValueError as error:
        raise TraceError(f"{where}: not JSON: {error}") from None
    try:
        return _Line.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the line"
        raise TraceError(f"{where}: {field}: {first['msg']}") from None
