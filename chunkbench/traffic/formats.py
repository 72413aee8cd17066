"""Reads files of real traffic in their published formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, ValidationError

from chunkbench.text_file import TextError, csv_rows, from_json, lines, problem_of, read_text
from chunkbench.traffic.mooncake import MooncakeLines
from chunkbench.traffic.request import MOST_TOKEN_IDS
from chunkbench.traffic.trace import MOST_TOKENS, Trace, TraceError, TraceRequest, count, plain_number, seconds

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
_MOST_BAD_LINES = 5
"""Reading stops after this number of bad lines. The error lists them."""
_OWN_BLOCK = 16
_MOONCAKE_BLOCK, _BAILIAN_BLOCK = 512, 16
"""Number of tokens of a block in traces of Mooncake, and of Bailian."""
_TEXTS = {"conversations", "messages", "text_input", "text", "turns"}
"""A line with one of these keys holds texts."""


class _OwnLine(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    prompt: Annotated[tuple[Annotated[int, Field(ge=0, lt=MOST_TOKEN_IDS)], ...], Field(min_length=1, strict=False)]
    max_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)]
    due: NonNegativeFloat | None = None


Parse = Callable[[Any], TraceRequest | None]
"""A function that reads one line. It returns None for a failed request. Raises ValueError or KeyError."""


def read_traffic(path: Path) -> Trace:
    """Read a trace. Its first line decides the format.

    Mooncake: JSON lines with `timestamp` (ms), `input_length`, `output_length`, `hash_ids`. AIPerf: Mooncake's format
    with turns of conversations (`MooncakeLines`). Bailian: Mooncake's format with `chat_id`, times in seconds and
    blocks of 16 tokens. Azure: CSV with `TIMESTAMP` (UTC if it has no time zone), `ContextTokens`, `GeneratedTokens`.
    BurstGPT: CSV with `Timestamp` (s), `Request tokens`, `Response tokens`. ChunkBench: JSON lines with `prompt` (token
    ids), `max_tokens` and, in all lines or in none, `due` (s after the start).

    If a line is bad, nothing is returned. Raises TraceError, which lists the bad lines.
    """
    try:
        text = read_text(path)
    except TextError as error:
        raise TraceError(str(error)) from None
    line, first = next(lines(text), (0, ""))
    if not first:
        raise TraceError(f"{path}: has no request")
    if first.lstrip().startswith("{"):
        return _of_json_lines(path, text, first)
    if first.lstrip().startswith("["):
        texts = f"to make a trace of texts: chunkbench prompts {path} --tokenizer NAME --trace FILE"
        raise TraceError(f"{path}:{line}: a list; a trace has a JSON object in every line ({texts})")
    rows = csv_rows(text)
    _, header = next(rows, (line, []))
    if not isinstance(header, ValueError):
        for name, columns, parse in _CSV:
            if set(columns) <= set(header):
                if twice := [column for column in columns if header.count(column) > 1]:
                    raise TraceError(f"{path}:{line}: has two columns {twice[0]}")
                return _trace(name, parsed(path, _csv_lines(header, rows), parse))
    known = "; ".join(f"{name}: {', '.join(columns)}" for name, columns, _ in _CSV)
    raise TraceError(f"{path}:{line}: neither JSON lines nor a CSV with the columns of a known trace ({known})")


def _of_json_lines(path: Path, text: str, first: str) -> Trace:
    try:
        keys = set(from_json(first))
    except ValueError:
        keys = set()  # reading the lines finds this error again, with its place
    if "chat_id" in keys:
        return _mooncake(path, "Bailian", text, MooncakeLines(_BAILIAN_BLOCK, 1))
    if "input_length" in keys or "hash_ids" in keys:
        name = "AIPerf" if "session_id" in keys else "Mooncake"
        return _mooncake(path, name, text, MooncakeLines(_MOONCAKE_BLOCK, 1000))
    if keys & _TEXTS:
        made = f"chunkbench prompts {path} --tokenizer NAME --trace FILE; or send the texts: chunkbench load --texts"
        raise TraceError(f"{path}: holds texts; a trace holds lengths or token ids. Make one: {made}")
    return _own(path, text)


def _mooncake(path: Path, name: str, text: str, reader: MooncakeLines) -> Trace:
    requests, failed = parsed(path, json_lines(text), reader.read)
    notes = []
    if reader.later_turns:
        notes.append(
            f"{reader.later_turns} requests are later turns: their prompts repeat all earlier texts. A delay begins "
            "at the answer before, or in a replay, which has no answers, at the due time of the turn before"
        )
    if not reader.timed:
        notes.append("the file does not say when requests are due" + ("; first turns are due at 0" * reader.delayed))
    if not reader.tells_sharing:
        requests = [request._replace(blocks=()) for request in requests]
    timed = bool(reader.timed) or reader.delayed
    return _trace(name, (requests, failed), reader.block_tokens * reader.tells_sharing, timed, notes)


def _own(path: Path, text: str) -> Trace:
    requests, _ = parsed(path, json_lines(text), _own_line)
    timed = [line.due is not None for line in requests]
    if any(timed) and not all(timed):
        raise TraceError(f"{path}: some requests have `due` and some have not; give it to all or to none")
    ids: dict[tuple[int, tuple[int, ...]], int] = {}

    def blocks(prompt: tuple[int, ...]) -> tuple[int, ...]:
        found, parent = [], -1
        for begin in range(0, len(prompt), _OWN_BLOCK):
            parent = ids.setdefault((parent, prompt[begin : begin + _OWN_BLOCK]), len(ids))
            found.append(parent)
        return tuple(found)

    requests.sort(key=lambda line: line.due or 0.0)
    made = (TraceRequest(r.due or 0.0, len(r.prompt), r.max_tokens, blocks(r.prompt), r.prompt) for r in requests)
    others = dict.fromkeys(name for line in requests for name in line.model_extra or ())
    notes = [] if all(timed) else ["the file does not say when requests are due"]
    notes += [f"fields that are not read: {', '.join(map(repr, others))}"] if others else []
    return Trace("token ids", tuple(made), _OWN_BLOCK, tuple(notes), all(timed))


def _own_line(line: Any) -> _OwnLine:
    if isinstance(line.get("prompt"), str):
        raise ValueError("prompt is a text, not token ids; chunkbench prompts makes them, with --trace")
    return validated(_OwnLine, line)


def validated(kind: type[M], line: Any) -> M:
    """Check a line against a pydantic model, and return the model. Raises ValueError that names the wrong field."""
    try:
        return kind.model_validate(line)
    except ValidationError as error:
        raise ValueError(problem_of(error.errors()[0], "the line")) from None


def _trace(
    name: str,
    read: tuple[list[TraceRequest], int],
    block_tokens: int = 0,
    timed: bool = True,
    notes: Sequence[str] = (),
) -> Trace:
    requests, failed = read
    requests.sort(key=lambda request: request.due)
    start = requests[0].due
    notes = [*notes, *([f"{failed} requests without an answer are left out"] if failed else [])]
    times = {request.due for request in requests}
    if timed and len(times) < len(requests) / 2:
        notes.append(f"{len(requests)} requests have only {len(times)} different times: bursts, or coarse clocks")
    moved = tuple(request._replace(due=request.due - start) for request in requests)
    return Trace(name, moved, block_tokens, tuple(notes), timed)


def parsed(path: Path, numbered: Iterator[tuple[int, Any]], parse: Callable[[Any], T | None]) -> tuple[list[T], int]:
    """Call `parse` for each numbered line. Returns the requests, and the number of lines for which `parse` returned
    None. Raises TraceError if a line is bad or no request is left."""
    requests: list[T] = []
    problems: list[str] = []
    failed = 0
    for number, line in numbered:
        try:
            if isinstance(line, ValueError):
                raise line
            request = parse(line)
        except (ValueError, KeyError, OverflowError) as error:
            missing = f"has no {error}" if isinstance(error, KeyError) else str(error)
            problems.append(f"{path}:{number}: {missing}")
            if len(problems) == _MOST_BAD_LINES:
                break
            continue
        if request is None:
            failed += 1
        else:
            requests.append(request)
    if problems:
        more = " (and perhaps more)" if len(problems) == _MOST_BAD_LINES else ""
        raise TraceError("\n".join(problems) + more)
    if not requests:
        raise TraceError(f"{path}: has no request")
    return requests, failed


def json_lines(text: str) -> Iterator[tuple[int, Any]]:
    """Number of each line, with its JSON object. A line that is not a JSON object gives a ValueError in place of the
    object."""
    for number, line in lines(text):
        try:
            value = from_json(line)
            yield number, value if isinstance(value, dict) else ValueError("the line is not a JSON object")
        except ValueError as error:
            yield number, error


def _csv_lines(header: list[str], rows: Iterator[tuple[int, list[str] | ValueError]]) -> Iterator[tuple[int, Any]]:
    for number, row in rows:
        if isinstance(row, ValueError):
            yield number, row
        elif len(row) != len(header):
            yield number, ValueError("does not have as many columns as the first line")
        else:
            yield number, dict(zip(header, row, strict=True))


def _azure(row: dict[str, str]) -> TraceRequest:
    at = datetime.fromisoformat(row["TIMESTAMP"])
    due = (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
    return TraceRequest(due, count(row["ContextTokens"]), count(row["GeneratedTokens"]), ())


def _burst_gpt(row: dict[str, str]) -> TraceRequest | None:
    answer = row["Response tokens"]
    if plain_number(answer) == 0:
        return None
    return TraceRequest(seconds(row["Timestamp"]), count(row["Request tokens"]), count(answer), ())


_CSV: Sequence[tuple[str, tuple[str, ...], Parse]] = (
    ("Azure", ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), _azure),
    ("BurstGPT", ("Timestamp", "Request tokens", "Response tokens"), _burst_gpt),
)
