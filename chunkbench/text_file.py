"""Reads all text files that users write: lines of text, JSON and CSV, with errors that name file and line.

Also writes lines so that no incomplete line remains in a file.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import difflib
import io
import json
import os
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_OTHER_ENCODINGS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


class TextError(ValueError):
    """A file cannot be read as text. `str` of the error names the place in the file; `message` does not."""

    def __init__(self, path: str | Path, message: str, line: int = 0, column: int = 0) -> None:
        super().__init__(":".join([str(path), *(str(number) for number in (line, column) if number), f" {message}"]))
        self.message, self.line, self.column = message, line, column


_STREAMS = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))


def is_stream(path: Path) -> bool:
    """Whether a path is a pipe or an open file of this process. The name of such a path does not tell the format of its
    content, and has no meaning in another process."""
    # Functions of os.path answer False for names that no file system takes, where those of Path raise an error.
    other = os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
    return _is_stdin(path) or path.parent in _STREAMS or other


def _is_stdin(path: Path) -> bool:
    """Whether a path is `-` and no file has this name."""
    return str(path) == "-" and not path.exists()


def read_text(path: Path, most: int | None = None) -> str:
    """The text of a file in UTF-8 of at most `most` bytes, without a byte order mark. `-` is standard input.

    The file is opened once, so it may be a pipe. Raises `TextError`.
    """
    try:
        with Path("/dev/stdin" if _is_stdin(path) else path).open("rb") as file:
            content = file.read(-1 if most is None else most + 1)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise TextError(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if most is not None and len(content) > most:
        raise TextError(path, f"is larger than the limit of {most} bytes")
    return decode(content, path)


def decode(content: bytes, path: str | Path) -> str:
    """The text of bytes in UTF-8, without a byte order mark. Raises `TextError` with line and column."""
    for mark, encoding in _OTHER_ENCODINGS:
        if content.startswith(mark):
            raise TextError(path, f"the file is in {encoding}; save it as UTF-8", 1, 1)
    content = content.removeprefix(codecs.BOM_UTF8)
    try:
        text = content.decode("utf-8")
        binary = text.find("\0")
    except UnicodeDecodeError as error:
        text, binary = content[: error.start].decode("utf-8"), error.start
    if binary >= 0:
        before = text[:binary]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise TextError(path, "not text in UTF-8; is this a binary file?", line, column)
    return text


def lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number (from 1 on) and the text of each line that is not blank.

    Lines end only at a line feed, perhaps after a carriage return; U+2028 and U+0085 do not end a line.
    """
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line.removesuffix("\r")


def write_whole(file: FileIO, line: bytes) -> None:
    """Write a line completely or not at all. Raises OSError."""
    left = line = line + b"\n"
    try:
        while left:
            left = left[file.write(left) :]
    except OSError:
        with contextlib.suppress(OSError):  # a pipe cannot be truncated
            file.truncate(file.tell() - len(line) + len(left))
        raise


def from_json(text: str) -> Any:
    """The value of JSON text. Raises only ValueError, also for strings that are valid JSON but not valid Unicode."""
    try:
        value = json.loads(text, parse_constant=_no_number, parse_float=_finite)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("not JSON that can be read: it is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("not text: half of a surrogate pair (\\ud800 to \\udfff)") from None
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    return value


def problem_of(detail: ErrorDetails, whole: str = "") -> str:
    """Text of a problem that pydantic found. It begins with the place of the problem in the file, or with `whole` if
    the problem is not in a single field.

    The place contains keys of the file, so characters that are not printable are shown as escapes.
    """
    place = ".".join(str(part) if str(part).isprintable() else repr(part) for part in detail["loc"]) or whole
    return f"{place}: {detail['msg']}" if place else detail["msg"]


def is_text(text: str) -> bool:
    """Whether all characters can be written in UTF-8. Half of a surrogate pair cannot be. Such halves occur in names of
    files that are not UTF-8."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def csv_rows(text: str) -> Iterator[tuple[int, list[str] | ValueError]]:
    """Yield each row that is not blank: the number of its first line, and its cells without surrounding blanks. The
    cells are replaced by an error if the row is not CSV."""
    reader = csv.reader(io.StringIO(text, newline="\n"), skipinitialspace=True)
    while True:
        first = reader.line_num + 1
        try:
            row = [cell.strip() for cell in next(reader)]
        except StopIteration:
            return
        except csv.Error as error:
            yield first, ValueError(f"not CSV: {error}")
            continue
        if any("\n" in cell for cell in row):
            yield first, ValueError("not CSV: a quote is opened and not closed in its line")
        elif any(row) or len(row) > 1:
            yield first, row


def _finite(text: str) -> float:
    value = float(text)
    return value if value - value == 0 else _no_number(text)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text[:20]} is not a finite number")


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """End of a message on an unknown name: `; did you mean X?` if a known name is similar, else `; one of ...`."""
    folded = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), folded, n=1, cutoff=0.6)
    return f"; did you mean {folded[close[0]]}?" if close else f"; one of {', '.join(known)}"
