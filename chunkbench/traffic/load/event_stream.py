"""Server-sent events, as the HTML standard defines them (section 9.2.6, "Interpreting an event stream")."""

from __future__ import annotations

import re
from collections.abc import Iterator

_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventStream:
    """Splits a stream of bytes into events. Returns the data of each event as soon as the event has ended."""

    def __init__(self) -> None:
        self._rest = bytearray()
        """The beginning of a line whose end has not come yet."""
        self._data: list[bytes] = []
        self._at_begin = True
        self._after_return = False
        """Whether the last byte was a carriage return. A line feed after it belongs to the same end of line."""

    def feed(self, piece: bytes) -> Iterator[str]:
        """Add bytes. Returns the data of the events that end in them."""
        if not piece:
            return
        if self._after_return and piece[:1] == b"\n":
            piece = piece[1:]
            self._after_return = False
        if piece:
            self._after_return = piece.endswith(b"\r")
        *ended, rest = _END.split(piece)
        for end in ended:
            line, self._rest = bytes(self._rest) + end, bytearray()
            if self._at_begin:
                line, self._at_begin = line.removeprefix(_BYTE_ORDER_MARK), False
            if line:
                field, _, value = line.partition(b":")
                if field == b"data":
                    self._data.append(value.removeprefix(b" "))
            elif self._data:
                data, self._data = b"\n".join(self._data), []
                yield data.decode(errors="replace")
        self._rest += rest
