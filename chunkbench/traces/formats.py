"""Files of real traffic, in the formats in which they are published."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveInt, ValidationError

T = TypeVar("T")
_MOST_BAD_LINES = 5
"""So many are named before reading gives up."""
_OWN_BLOCK = 16
MOONCAKE_BLOCK = 512
"""Tokens of a block in Mooncake's traces."""


class TraceError(ValueError):
    """A trace cannot be read; the message names file and line."""


class TraceRequest(NamedTuple):
    """One request of a trace."""

    due: float
    """Seconds after the first request; in the load's own format, after the start."""
    prompt_tokens: int
    answer_tokens: int
    blocks: tuple[int, ...]
    """Ids of the prompt's blocks, a partial last one included. Equal ids mean equal blocks behind equal blocks. Empty
    where the trace says nothing about sharing."""
    prompt: tuple[int, ...] = ()
    """Token ids of the prompt; empty where the trace has none."""


@dataclass(frozen=True)
class Trace:
    """The requests of a file, by due time."""

    format: str
    requests: tuple[TraceRequest, ...]
    block_tokens: int
    """Tokens of a block; 0: the trace says nothing about sharing."""
    notes: tuple[str, ...]
    """What a reader must know: lines left out, coarse times."""
    timed: bool = True
    """Whether the file says when requests are due; else all are due at 0."""

    @property
    def has_token_ids(self) -> bool:
        """Whether the trace is in the load's own format, which has the tokens of prompts."""
        return bool(self.requests[0].prompt)

    def first(self, count: int, longest: int | None = None) -> list[TraceRequest]:
        """The first `count` requests with at most `longest` tokens in prompt and answer. Raises ValueError if there is
        none."""
        fitting = [r for r in self.requests if longest is None or r.prompt_tokens + r.answer_tokens <= longest][:count]
        if not fitting:
            raise ValueError(f"no request of the trace has at most {longest} tokens")
        return fitting


class _OwnLine(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    prompt: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1, strict=False)]
    max_tokens: PositiveInt
    due: NonNegativeFloat | None = None


Parse = Callable[[Any], TraceRequest | None]
"""Reads one line; None: a request that failed, which is left out. Raises ValueError, KeyError or TypeError."""


def read_traffic(path: Path) -> Trace:
    """Read a trace; its first line tells the format.

    Mooncake: JSON lines with `timestamp` (ms), `input_length`, `output_length`, `hash_ids`. Azure: CSV with
    `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`. BurstGPT: CSV with `Timestamp` (s), `Request tokens`, `Response
    tokens`. The load's own: JSON lines with `prompt` (token ids), `max_tokens` and, in all lines or in none, `due` (s
    after the start).

    Raises TraceError, which names the bad lines; a file with a bad line is not read at all.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from None
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if not first:
        raise TraceError(f"{path}: has no request")
    if first.startswith("{"):
        own = '"hash_ids"' not in first
        return _own(path, text) if own else _trace(path, "Mooncake", _json_lines(text), _mooncake, MOONCAKE_BLOCK)
    header = [name.strip() for name in first.split(",")]
    for name, columns, parse in _CSV:
        if set(columns) <= set(header):
            return _trace(path, name, _csv_lines(text), parse, 0)
    known = "; ".join(f"{name}: {', '.join(columns)}" for name, columns, _ in _CSV)
    raise TraceError(f"{path}:1: neither JSON lines nor a CSV with the columns of a known trace ({known})")


def _own(path: Path, text: str) -> Trace:
    lines, _ = _parsed(path, _json_lines(text), _own_line)
    timed = [line.due is not None for line in lines]
    if any(timed) and not all(timed):
        raise TraceError(f"{path}: some requests have `due` and some have not; give it to all or to none")
    ids: dict[tuple[int, tuple[int, ...]], int] = {}

    def blocks(prompt: tuple[int, ...]) -> tuple[int, ...]:
        found, parent = [], -1
        for begin in range(0, len(prompt), _OWN_BLOCK):
            parent = ids.setdefault((parent, prompt[begin : begin + _OWN_BLOCK]), len(ids))
            found.append(parent)
        return tuple(found)

    lines.sort(key=lambda line: line.due or 0.0)
    made = (TraceRequest(r.due or 0.0, len(r.prompt), r.max_tokens, blocks(r.prompt), r.prompt) for r in lines)
    notes = () if all(timed) else ("the file does not say when requests are due",)
    return Trace("token ids", tuple(made), _OWN_BLOCK, notes, all(timed))


def _own_line(line: Any) -> _OwnLine:
    try:
        return _OwnLine.model_validate(line)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'the line'}: {first['msg']}") from None


def _trace(path: Path, name: str, lines: Iterator[tuple[int, Any]], parse: Parse, block_tokens: int) -> Trace:
    requests, failed = _parsed(path, lines, parse)
    requests.sort(key=lambda request: request.due)
    start = requests[0].due
    notes = [f"{failed} requests without an answer are left out"] if failed else []
    times = {request.due for request in requests}
    if len(times) < len(requests) / 2:
        notes.append(f"{len(requests)} requests have only {len(times)} different times: bursts, or coarse clocks")
    moved = tuple(request._replace(due=request.due - start) for request in requests)
    return Trace(name, moved, block_tokens, tuple(notes))


def _parsed(path: Path, lines: Iterator[tuple[int, Any]], parse: Callable[[Any], T | None]) -> tuple[list[T], int]:
    """What `parse` makes of the lines, and how many it left out. Raises TraceError if a line is bad, or all are left
    out."""
    good: list[T] = []
    bad: list[str] = []
    failed = 0
    for number, line in lines:
        try:
            if isinstance(line, ValueError):
                raise line
            request = parse(line)
        except (ValueError, KeyError, TypeError) as error:
            missing = f"has no {error}" if isinstance(error, KeyError) else str(error)
            bad.append(f"{path}:{number}: {missing}")
            if len(bad) == _MOST_BAD_LINES:
                break
            continue
        if request is None:
            failed += 1
        else:
            good.append(request)
    if bad:
        more = " (and perhaps more)" if len(bad) == _MOST_BAD_LINES else ""
        raise TraceError("\n".join(bad) + more)
    if not good:
        raise TraceError(f"{path}: has no request")
    return good, failed


def _json_lines(text: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                yield number, ValueError(f"not JSON: {error}")


def _csv_lines(text: str) -> Iterator[tuple[int, Any]]:
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    for row in reader:
        if None in row or None in row.values():
            yield reader.line_num, ValueError("has another number of columns than the first line")
        else:
            yield reader.line_num, row


def _mooncake(line: Any) -> TraceRequest:
    prompt, ids = _count(line["input_length"], "input_length"), line["hash_ids"]
    if not isinstance(ids, list) or not all(isinstance(one, int) and one >= 0 for one in ids):
        raise ValueError("hash_ids is no list of ids from 0 on")
    wanted = math.ceil(prompt / MOONCAKE_BLOCK)
    if len(ids) != wanted:
        raise ValueError(f"{len(ids)} hash_ids for {prompt} tokens; in blocks of {MOONCAKE_BLOCK} these are {wanted}")
    due = _seconds(line["timestamp"]) / 1000
    return TraceRequest(due, prompt, _count(line["output_length"], "output_length"), tuple(ids))


def _azure(row: dict[str, str]) -> TraceRequest:
    due = datetime.fromisoformat(row["TIMESTAMP"]).timestamp()
    return TraceRequest(due, _count(row["ContextTokens"]), _count(row["GeneratedTokens"]), ())


def _burst_gpt(row: dict[str, str]) -> TraceRequest | None:
    answer = int(row["Response tokens"])
    if answer == 0:
        return None
    return TraceRequest(_seconds(row["Timestamp"]), _count(row["Request tokens"]), _count(answer), ())


_CSV: Sequence[tuple[str, tuple[str, ...], Parse]] = (
    ("Azure", ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), _azure),
    ("BurstGPT", ("Timestamp", "Request tokens", "Response tokens"), _burst_gpt),
)


def _count(value: Any, name: str = "tokens") -> int:
    number = int(value)
    if number < 1 or number != float(value):
        raise ValueError(f"{name} is {value}; it must be a whole number from 1 on")
    return number


def _seconds(value: Any) -> float:
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError(f"the time is {value}; it must be a number from 0 on")
    return number
