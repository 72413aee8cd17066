"""Traces in published formats: small files written here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chunkbench.traces import TraceError, TraceRequest, draw_traffic, read_traffic

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def mooncake(**changes: Any) -> dict[str, Any]:
    return {"timestamp": 3000, "input_length": 700, "output_length": 20, "hash_ids": [4, 9]} | changes


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_mooncake(tmp_path: Path) -> None:
    later = mooncake(timestamp=9500, input_length=512, hash_ids=[4])
    trace = read_traffic(write(tmp_path / "t.jsonl", later, "", mooncake()))
    assert (trace.format, trace.block_tokens, trace.notes) == ("Mooncake", 512, ())
    assert trace.requests == (TraceRequest(0.0, 700, 20, (4, 9)), TraceRequest(6.5, 512, 20, (4,)))


def test_azure(tmp_path: Path) -> None:
    lines = ["2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.9951690,396,109"]
    trace = read_traffic(write(tmp_path / "t.csv", AZURE + lines[0], lines[1]))
    assert (trace.format, trace.block_tokens) == ("Azure", 0)
    assert [(r.prompt_tokens, r.answer_tokens, r.blocks) for r in trace.requests] == [(374, 44, ()), (396, 109, ())]
    assert trace.requests[1].due == pytest.approx(4.314579, abs=1e-5)


def test_burst_gpt_leaves_failures_out_and_says_so(tmp_path: Path) -> None:
    rows = "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,0,1087,API log\n118,GPT-4,417,276,693,API log"
    trace = read_traffic(write(tmp_path / "t.csv", BURST + rows))
    assert [request[:3] for request in trace.requests] == [(0.0, 472, 18), (113.0, 417, 276)]
    assert trace.notes == ("1 requests without an answer are left out",)


def test_token_ids_share_what_their_tokens_share(tmp_path: Path) -> None:
    system = list(range(32))
    prompts = [[*system, 1], [*system, 2], [7, *system], system]
    trace = read_traffic(write(tmp_path / "t.jsonl", *({"prompt": prompt, "max_tokens": 3} for prompt in prompts)))
    first, second, third, fourth = (request.blocks for request in trace.requests)
    assert len(first) == len(third) == 3
    assert first[:2] == second[:2] == fourth
    assert len({first[2], second[2], *third, *first[:2]}) == 7
    assert "does not say when" in trace.notes[0]


def test_coarse_times_are_named(tmp_path: Path) -> None:
    trace = read_traffic(write(tmp_path / "t.jsonl", *[mooncake()] * 5))
    assert trace.notes == ("5 requests have only 1 different times: bursts, or coarse clocks",)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "not JSON"),
        (mooncake(hash_ids=[1]), "1 hash_ids for 700 tokens; in blocks of 512 these are 2"),
        (mooncake(hash_ids=["a", "b"]), "hash_ids is no list of ids"),
        (mooncake(input_length=0), "input_length is 0; it must be a whole number from 1 on"),
        (mooncake(output_length=1.5), "output_length is 1.5"),
        (mooncake(timestamp=-1), "the time is -1"),
        (mooncake(timestamp="soon"), "could not convert"),
        ({"timestamp": 1, "input_length": 3, "hash_ids": [1]}, "has no 'output_length'"),
        ("[1]", "list indices"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_read(tmp_path: Path, line: Any, why: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_traffic(write(tmp_path / "t.jsonl", mooncake(), line))
    assert f"{tmp_path / 't.jsonl'}:2: " in str(caught.value)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no request"),
        (AZURE, "has no request"),
        ("a,b\n1,2\n", "neither JSON lines nor a CSV"),
        (AZURE + "2023-11-16 18:15:46,374\n", "2: has another number of columns"),
        (AZURE + "yesterday,374,3\n", "2: Invalid isoformat"),
        (BURST + "5,ChatGPT,472,many,490,x\n", "2: invalid literal"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=why):
        read_traffic(path)


def test_many_bad_lines_are_cut_short(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        read_traffic(write(tmp_path / "t.jsonl", mooncake(), *["{"] * 9))
    assert str(caught.value).count("not JSON") == 5
    assert "perhaps more" in str(caught.value)


def test_drawn_tokens_share_exactly_what_the_ids_share(tmp_path: Path) -> None:
    ids = [[0, 1, 5], [0, 1, 6], [7, 8, 9], [0, 300]]
    lengths = [1300, 1536, 1100, 800]
    lines = [
        mooncake(timestamp=5000 + n, input_length=length, hash_ids=blocks)
        for n, (blocks, length) in enumerate(zip(ids, lengths, strict=True))
    ]
    path = write(tmp_path / "t.jsonl", *lines)
    trace = read_traffic(path)
    assert not trace.has_token_ids
    sent = draw_traffic(trace, 4, 300, seed=1)
    assert [len(request.prompt) for request in sent] == lengths
    assert [request.due for request in sent] == pytest.approx([0, 0.001, 0.002, 0.003])
    prompts = [request.prompt for request in sent]
    assert all(0 <= token < 300 for prompt in prompts for token in prompt)
    pairs = [list(zip(prompts[0], prompt, strict=False)) for prompt in prompts[1:]]
    assert [next(i for i, (one, other) in enumerate(both) if one != other) for both in pairs] == [1024, 0, 512]
    assert draw_traffic(trace, 4, 300, seed=2)[0].prompt != prompts[0]


def test_long_requests_are_left_out_before_they_are_counted(tmp_path: Path) -> None:
    lines = [mooncake(timestamp=1000 * n, input_length=512 * n, hash_ids=list(range(n))) for n in (3, 1, 2, 1)]
    trace = read_traffic(write(tmp_path / "t.jsonl", *lines))
    sent = draw_traffic(trace, 2, 2048, seed=0, longest=1100)
    assert [len(request.prompt) for request in sent] == [512, 512]
    assert sent[0].due == 0
    with pytest.raises(ValueError, match="no request of the trace has at most 5 tokens"):
        draw_traffic(trace, 2, 2048, seed=0, longest=5)


def test_without_ids_prompts_share_nothing(tmp_path: Path) -> None:
    rows = "\n".join(f"2023-11-16 18:15:4{n},374,4" for n in range(5))
    sent = draw_traffic(read_traffic(write(tmp_path / "t.csv", AZURE + rows)), 5, 2048, seed=0)
    assert len({request.prompt[0] for request in sent}) == 5
    assert {len(request.prompt) for request in sent} == {374}
