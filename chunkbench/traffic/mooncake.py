"""Reads traces in Mooncake's format, which hold lengths and block ids. Also reads AIPerf's conversations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chunkbench.traffic.trace import TraceRequest, count, seconds

Piece = tuple[int, int, int]
"""(index of a text, position of the piece's first token in this text, position after its last token)."""


@dataclass(frozen=True)
class _Turn:
    due: float
    first_id: int | None
    """Id of the first block of the conversation."""
    pieces: tuple[Piece, ...]
    """Pieces of the texts that form the prompt and the answer."""


class MooncakeLines:
    """Reads the lines of a trace, in their order.

    A line with the `session_id` of an earlier line is the next turn of that conversation, as AIPerf sends it. Its
    `input_length` and `hash_ids` describe only the new text. The prompt is all earlier texts and answers of the
    conversation, then the new text. In two cases the line describes the whole prompt: its ids begin with the
    conversation's first id, or its `context_mode` is `message_array_with_responses`. Without a `timestamp`, a later
    turn is due `delay` after the answer to the turn before.
    """

    def __init__(self, block_tokens: int, per_second: float) -> None:
        self.block_tokens, self._per_second = block_tokens, per_second
        self._numbers: dict[object, int] = {}
        """Id of a block, or the pieces of text in a block -> number of the block. The numbers begin at 0."""
        self._last: dict[object, _Turn] = {}
        self.timed: bool | None = None
        """Whether the first turns have a `timestamp`; None before the first line is read."""
        self.delayed = False
        """Whether any line has a `delay`."""
        self.later_turns = 0
        self.tells_sharing = False

    def read(self, line: Any) -> TraceRequest:
        """Convert a line to a request. Raises ValueError or KeyError."""
        tokens = count(line["input_length"], "input_length")
        answer = count(line["output_length"], "output_length")
        session, ids = line.get("session_id"), self._ids(line.get("hash_ids"), tokens)
        if session is not None and type(session) not in (str, int):
            raise ValueError("session_id is neither text nor a whole number")
        before = None if session is None else self._last.get(session)
        due, delay = self._times(line, before)
        pieces = self._pieces(ids, tokens)
        if before is not None:
            self.later_turns += 1
            if not (ids and ids[0] == before.first_id) and line.get("context_mode") != "message_array_with_responses":
                pieces = (*before.pieces, *pieces)
        self.tells_sharing |= before is not None or ids is not None
        if session is not None:
            first_id = before.first_id if before is not None else ids[0] if ids else None
            self._last[session] = _Turn(due, first_id, (*pieces, (self._new_text(), 0, answer)))
        total = count(sum(end - begin for _, begin, end in pieces), "the prompt of a turn")
        number = None if session is None else self._number(("session", session))
        return TraceRequest(due, total, answer, self._blocks(pieces), (), number, delay)

    def _times(self, line: Any, before: _Turn | None) -> tuple[float, float | None]:
        """Seconds at which the request is due, and its delay in seconds after the answer before."""
        timestamp, delay = line.get("timestamp"), line.get("delay")
        if before is None:
            if self.timed and timestamp is None:
                raise KeyError("timestamp")
            if self.timed is False and timestamp is not None:
                raise ValueError("has a timestamp; requests before it have none")
            self.timed = timestamp is not None
        if timestamp is not None:
            return seconds(timestamp) / self._per_second, None
        self.delayed |= delay is not None
        wait = seconds(0 if delay is None else delay) / self._per_second
        return (wait, None) if before is None else (before.due + wait, wait)

    def _ids(self, ids: Any, tokens: int) -> list[int] | None:
        if ids is None:
            return None
        if not isinstance(ids, list) or not all(type(one) is int for one in ids):
            raise ValueError("hash_ids must be a list of whole numbers")
        wanted = -(-tokens // self.block_tokens)
        if len(ids) != wanted:
            raise ValueError(
                f"{len(ids)} hash_ids for {tokens} tokens; in blocks of {self.block_tokens} these are {wanted}"
            )
        return ids

    def _pieces(self, ids: list[int] | None, tokens: int) -> tuple[Piece, ...]:
        if ids is None:
            return ((self._new_text(), 0, tokens),)
        left = range(tokens, 0, -self.block_tokens)
        return tuple((self._number(one), 0, min(rest, self.block_tokens)) for one, rest in zip(ids, left, strict=True))

    def _blocks(self, pieces: tuple[Piece, ...]) -> tuple[int, ...]:
        """Numbers of the blocks into which the pieces are cut. A block that holds only the beginning of one text has
        the text's number."""
        blocks: list[int] = []
        block: list[Piece] = []
        left = self.block_tokens
        for text, begin, end in pieces:
            while begin < end:
                block.append((text, begin, min(end, begin + left)))
                left -= block[-1][2] - begin
                begin = block[-1][2]
                if not left:
                    blocks.append(self._of_block(block, blocks))
                    block, left = [], self.block_tokens
        if block:
            blocks.append(self._of_block(block, blocks))
        return tuple(blocks)

    def _of_block(self, block: list[Piece], before: list[int]) -> int:
        if len(block) == 1 and block[0][1] == 0:
            return block[0][0]
        return self._number((before[-1] if before else None, *block))

    def _new_text(self) -> int:
        return self._number(("text", len(self._numbers)))

    def _number(self, of: object) -> int:
        return self._numbers.setdefault(of, len(self._numbers))
