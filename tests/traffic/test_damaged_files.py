"""Damaged files of traces and prompts: read, or refused with the name of the file; nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkbench.traffic import TraceError, read_traffic
from chunkbench.traffic.sets import PromptsError, read

LINES = (
    b'{"session_id": "a", "delay": 3, "timestamp": 0, "input_length": 700, "output_length": 4, "hash_ids": [1, 2]}',
    b'{"prompt": [1, 2, 3], "max_tokens": 4, "due": 1.5}',
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44",
    b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,GPT-4,472,18,490,API log",
    b'{"conversations": [{"from": "human", "value": "x"}]}',
    b'[{"role": "user", "content": [{"type": "text", "text": "hi"}]}]',
)
BITS = (
    *(
        b"1e999",
        b"null",
        b"true",
        b"[]",
        b"{}",
        b'""',
        b"-1",
        b"\xff",
        b"\0",
        b"\xef\xbb\xbf",
        b"\n",
        b"\r",
        b'"',
        b",",
    ),
    *(b"1" * 5000, b"[" * 5000, b"\\ud800", b"\xe2\x80\xa8", b"NaN", b"1.5", b"9" * 25, b":", b"0", b"_"),
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    content = b"\n".join(draw(st.lists(st.sampled_from(LINES), min_size=1, max_size=3)))
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(content)))
        content = content[:begin] + draw(st.sampled_from(BITS)) + content[begin + draw(st.integers(0, 5)) :]
    return content


@given(damaged(), st.sampled_from([".json", ".jsonl", ".csv", ""]))
@settings(max_examples=200, deadline=None)
def test_damaged_files(tmp_path_factory: pytest.TempPathFactory, content: bytes, suffix: str) -> None:
    path = tmp_path_factory.getbasetemp() / f"damaged{suffix}"
    path.write_bytes(content)
    for reader, error in ((read_traffic, TraceError), (lambda path: read([path]), PromptsError)):
        refusal = str(path)
        try:
            reader(path)
        except error as refused:
            refusal = str(refused)
        assert refusal.startswith(str(path))
