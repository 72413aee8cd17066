"""The reader of event streams, cut at any byte."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkbench.traffic.load.event_stream import EventStream

TEXT = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=6)
OTHER = st.sampled_from([":", ": a comment", "event: x", "id: 7", "retry", "retry: 9", "datas: no", " data: no"])


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[str]]:
    """A stream of one kind of line ends, and the data of its events."""
    end = draw(st.sampled_from(["\n", "\r", "\r\n"]))
    lines: list[str] = []
    told = []
    for data in draw(st.lists(st.lists(TEXT, max_size=3), max_size=4)):
        for line in data:
            lines += [draw(OTHER)] if draw(st.booleans()) else []
            lines.append(f"data:{draw(st.sampled_from(['', ' '])) if line[:1] != ' ' else ' '}{line}")
        lines.append("")
        told += ["\n".join(data)] if data else []
    mark = draw(st.sampled_from(["", "\ufeff"]))
    return (mark + "".join(line + end for line in lines)).encode(), told


@given(streams(), st.lists(st.integers(0, 200), max_size=8))
@settings(max_examples=100, deadline=None)
def test_events_do_not_depend_on_where_a_stream_is_cut(stream: tuple[bytes, list[str]], cuts: list[int]) -> None:
    content, told = stream
    for places in (sorted(cuts), range(len(content))):
        reader = EventStream()
        edges = [0, *places, len(content)]
        pieces = [content[begin:end] for begin, end in itertools.pairwise(edges)]
        assert [data for piece in pieces for data in reader.feed(piece)] == told


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_an_event_is_told_at_the_first_byte_that_ends_it(end: bytes) -> None:
    reader = EventStream()
    content = b"data: a" + end + end
    whole = len(content) - (end == b"\r\n")
    assert [list(reader.feed(content[place : place + 1])) for place in range(whole)] == [*[[]] * (whole - 1), ["a"]]
    assert list(reader.feed(content[whole:] + b"data: b" + end)) == []


def test_a_part_of_an_event_is_none() -> None:
    assert list(EventStream().feed(b"data: a\n")) == []
    assert list(EventStream().feed(b"data: \xff\n\n")) == ["\ufffd"]


def test_a_long_line_takes_time_by_its_length() -> None:
    """A line that is read again for each of its pieces takes minutes here."""
    reader = EventStream()
    began = time.process_time()
    for _ in range(100_000):
        assert not list(reader.feed(b"x"))
    assert time.process_time() - began < 3
