"""Replays of traces: small files written here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chunkbench.traffic import Arrivals, due_times
from chunkbench.traffic.replayed import read_replayed


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def mooncake(seconds: float, tokens: int, answer: int, *ids: int) -> dict[str, Any]:
    return {"timestamp": seconds * 1000, "input_length": tokens, "output_length": answer, "hash_ids": ids}


def test_blocks_become_segments_and_the_last_one_is_partial(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.jsonl", mooncake(3, 1124, 7, 0, 1, 2), mooncake(6, 1024, 5, 0, 1), mooncake(9, 1124, 7, 0, 1, 2)
    )
    first, second, third = read_replayed(path, 9)
    assert [(one.due, one.text.prompt, one.text.total, one.answer) for one in (first, second, third)] == [
        (0, 1124, 1131, 7),
        (3, 1024, 1029, 5),
        (6, 1124, 1131, 7),
    ]
    keys = [one.text.keys(4) for one in (first, second, third)]
    assert (keys[0][:256] == keys[1][:256]).all()
    assert keys[0][256] != keys[1][256]
    # 1124 tokens are 281 blocks of 4. The answers behind equal prompts differ.
    assert (keys[0][:281] == keys[2][:281]).all()
    assert keys[0][281] != keys[2][281]


def test_traces_without_ids_share_nothing(tmp_path: Path) -> None:
    rows = "".join(f"2023-11-16 18:15:4{n},374,4\n" for n in range(5))
    requests = read_replayed(write(tmp_path / "t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows), 3)
    assert [one.due for one in requests] == [0, 1, 2]
    assert len({int(key) for one in requests for key in one.text.keys(2)}) == 3 * 378 / 2


def test_token_ids_are_kept_and_answers_are_nobodys(tmp_path: Path) -> None:
    lines = [{"prompt": [5, 6, 7, 8, last], "max_tokens": 3, "due": 2 * last} for last in (1, 2)]
    first, second = read_replayed(write(tmp_path / "t.jsonl", *lines), 9)
    assert (second.due, second.text.prompt, second.text.total, second.answer) == (2, 5, 8, 3)
    assert list(second.text.tokens(0, 5)) == [5, 6, 7, 8, 2]
    answers = [int(token) for one in (first, second) for token in one.text.tokens(5, 8)]
    assert len({*answers, 1, 2, 5, 6, 7, 8}) == 12


def test_long_requests_are_left_out_before_they_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", *({"prompt": [1] * n, "max_tokens": 2} for n in (9, 3, 4, 5)))
    assert [one.text.prompt for one in read_replayed(path, 2, longest=6)] == [3, 4]
    with pytest.raises(ValueError, match="no request of the trace has at most 4 tokens"):
        read_replayed(path, 2, longest=4)


def test_a_trace_is_cut_in_the_same_way(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", *(mooncake(n, 512 * n, 8, *range(n)) for n in (3, 1, 2, 1)))
    assert [one.text.prompt for one in read_replayed(path, 2, longest=1100)] == [512, 512]
    with pytest.raises(ValueError, match="no request of the trace has at most 9 tokens"):
        read_replayed(path, 2, longest=9)


def test_drawn_times_replace_those_of_a_trace(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", *(mooncake(5, 512, 8, 0) for _ in range(400)))
    assert {one.due for one in read_replayed(path, 400)} == {0.0}
    drawn = [one.due for one in read_replayed(path, 400, rate=5.0, seed=1)]
    assert drawn == due_times(Arrivals(), 5.0, 400, 1)
