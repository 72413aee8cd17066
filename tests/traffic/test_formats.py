"""Files of traffic: formats, and damaged files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkbench.traffic import TraceError, TraceRequest, draw_traffic, read_traffic
from chunkbench.traffic.prompt_sets import PromptsError, read
from chunkbench.traffic.replayed import read_replayed

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
    assert trace.requests == (TraceRequest(0.0, 700, 20, (0, 1)), TraceRequest(6.5, 512, 20, (0,)))


def test_azure(tmp_path: Path) -> None:
    lines = ["2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.9951690,396,109"]
    trace = read_traffic(write(tmp_path / "t.csv", AZURE + lines[0], lines[1]))
    assert (trace.format, trace.block_tokens) == ("Azure", 0)
    assert [(r.prompt_tokens, r.answer_tokens, r.blocks) for r in trace.requests] == [(374, 44, ()), (396, 109, ())]
    assert trace.requests[1].due == pytest.approx(4.314579, abs=1e-5)


def test_burst_gpt_leaves_failures_out_and_says_so(tmp_path: Path) -> None:
    rows = "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,0,1087,API log\n118,GPT-4,417.0,276,693,API log\n"
    rows += "119,GPT-4,4.0,0.0,4,API log"
    trace = read_traffic(write(tmp_path / "t.csv", BURST + rows))
    assert [request[:3] for request in trace.requests] == [(0.0, 472, 18), (113.0, 417, 276)]
    assert trace.notes == ("2 requests without an answer are left out",)


def test_token_ids_share_what_their_tokens_share(tmp_path: Path) -> None:
    system = list(range(32))
    prompts = [[*system, 1], [*system, 2], [7, *system], system]
    trace = read_traffic(write(tmp_path / "t.jsonl", *({"prompt": prompt, "max_tokens": 3} for prompt in prompts)))
    first, second, third, fourth = (request.blocks for request in trace.requests)
    assert len(first) == len(third) == 3
    assert first[:2] == second[:2] == fourth
    assert len({first[2], second[2], *third, *first[:2]}) == 7
    assert "does not say when" in trace.notes[0]


def test_our_own_lines_are_sorted_and_odd_fields_are_named(tmp_path: Path) -> None:
    lines = [{"prompt": [1, 2], "max_tokens": 3, "due": due} for due in (2.5, 0.5)]
    trace = read_traffic(write(tmp_path / "t.jsonl", *lines, ""))
    assert trace.timed
    assert [(r.due, r.prompt, r.answer_tokens) for r in trace.requests] == [(0.5, (1, 2), 3), (2.5, (1, 2), 3)]
    untimed = read_traffic(write(tmp_path / "u.jsonl", {"prompt": [1], "max_tokens": 1, "tenant": "a", "a\n::b": 1}))
    assert untimed.timed is False
    assert untimed.notes == (
        "the file does not say when requests are due",
        r"fields that are not read: 'tenant', 'a\n::b'",
    )


def test_coarse_times_are_named(tmp_path: Path) -> None:
    trace = read_traffic(write(tmp_path / "t.jsonl", *[mooncake()] * 5))
    assert trace.notes == ("5 requests have only 1 different times: bursts, or coarse clocks",)


def changed(**fields: Any) -> str:
    return json.dumps(mooncake(**fields))


GOOD = changed() + "\n"
FIRST_TURN = '{"session_id": 1, "input_length": 3, "output_length": 3}\n'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (GOOD + "{", "2: not JSON"),
        (GOOD + changed(hash_ids=[1]), "2: 1 hash_ids for 700 tokens; in blocks of 512 these are 2"),
        (changed(hash_ids=["a", "b"]), "1: hash_ids must be a list"),
        (changed(hash_ids=[True, 2]), "1: hash_ids "),
        (changed(input_length=0), "1: input_length is 0; it must be a whole number from 1 on"),
        (GOOD.replace("700", "1" + "0" * 400), "1: input_length is 10000000000000000000"),
        (changed(output_length=1.5), "1: output_length is 1.5"),
        (changed(output_length=True), "1: output_length is True"),
        (changed(timestamp="soon"), "1: 'soon' is not a number"),
        (changed(timestamp=True), "1: the time is True"),
        (GOOD.replace("3000", "1" + "0" * 400), "1: the time is 10000000000000000000"),
        (GOOD + '{"timestamp": 1, "input_length": 3, "hash_ids": [1]}', "2: has no 'output_length'"),
        (GOOD + "null", "2: the line is not a JSON object"),
        (changed(session_id=True), "1: session_id is neither text nor a whole number"),
        (FIRST_TURN + FIRST_TURN.replace("}", ', "delay": false}'), "2: the time is False"),
        (FIRST_TURN.replace("}", ', "timestamp": 5}') + FIRST_TURN.replace("1", "2"), "2: has no 'timestamp'"),
        (FIRST_TURN + FIRST_TURN.replace('1, "', '2, "timestamp": 5, "'), "2: has a timestamp; requests before it"),
        ("", "has no request"),
        ("a,b\n1,2\n", "neither JSON lines nor a CSV"),
        ('""', "1: neither JSON lines nor"),
        (AZURE + "2023-11-16 18:15:46,374\n", "2: does not have as many columns"),
        (AZURE + "yesterday,374,3\n", "2: Invalid isoformat"),
        (AZURE + "2023-11-16 18:15:46,374," + "4" * 200_000, "2: not CSV: field larger than field limit"),
        (AZURE + "2023-11-16 18:15:46,374,1e999", "2: tokens is 1e999"),
        (AZURE + "2023-11-16 18:15:46,1_0,4", "2: '1_0' is not a number"),
        (AZURE + "2023-11-16 18:15:46,4,\u0663", "2: '\u0663' is not a number"),
        (AZURE.replace("\n", ",ContextTokens\n") + "2023-11-16 18:15:46,3,4,5\n", "1: has two columns ContextTokens"),
        (BURST + "5,ChatGPT,472,many,490,x\n", "2: 'many' is not a number"),
        (BURST + "1_0.5,GPT-4,4,8,9,Log", "2: '1_0.5' is not a number"),
        (BURST + "1e999,GPT-4,4,8,9,Log", "2: the time is 1e999"),
        (BURST + '5,GPT-4,4,8,9,"Log\n45,GPT-4,4,8,9,Log"\n', "2: not CSV: a quote is opened and not closed"),
        ('[{"conversations": []}]', "1: a list; a trace has a JSON object in every line"),
        ("[" * 100_000, "1: a list; a trace has a JSON object in every line"),
        ('{"conversations": []}', "holds texts; a trace holds lengths or token ids"),
        ('{"turns": []}', "or send the texts: chunkbench load --texts"),
        ('{"prompt": "hello", "max_tokens": 1}', "1: prompt is a text, not token ids"),
        ('{"prompt": [1], "max_tokens": 1}\n{"prompt": [], "max_tokens": 1}', "2: prompt"),
        ('{"prompt": [1], "max_tokens": 0}', "1: max_tokens"),
        ('{"prompt": [1], "max_tokens": 1, "due": -1}', "1: due"),
        ('{"prompt": [18446744073709551616], "max_tokens": 1}', "1: prompt.0: Input should be less than 2147483648"),
        ('{"prompt": [1], "max_tokens": 1, "due": 1}\n{"prompt": [1], "max_tokens": 1}', "some requests have `due`"),
    ],
)
def test_what_cannot_be_read_has_a_place(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "t"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TraceError) as caught:
        read_traffic(path)
    assert str(caught.value).startswith(f"{path}:")
    assert why in str(caught.value)


def test_many_bad_lines_are_cut_short_and_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        read_traffic(write(tmp_path / "t.jsonl", mooncake(), *["{"] * 9))
    assert str(caught.value).count("not JSON") == 5
    assert "perhaps more" in str(caught.value)
    with pytest.raises(TraceError, match="cannot be read"):
        read_traffic(tmp_path / "none.jsonl")


def test_times_without_a_zone_are_utc(tmp_path: Path) -> None:
    """In Berlin, the clock has no 02:30 on that day; with a zone in the file, 02:30 there is 01:30 UTC."""
    rows = "".join(f"2023-03-26 0{hour}:30:00,374,4\n" for hour in (1, 2, 3)) + "2023-03-26 05:30:00+01:00,9,9\n"
    path = write(tmp_path / "t.csv", AZURE + rows)
    script = "import os, sys, time; from pathlib import Path; from chunkbench.traffic import read_traffic\n"
    script += "for os.environ['TZ'] in ('UTC', 'Europe/Berlin', 'America/New_York'):\n time.tzset()\n"
    script += " print([request.due for request in read_traffic(Path(sys.argv[1])).requests])"
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[0.0, 3600.0, 7200.0, 10800.0]"] * 3


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


def test_without_ids_prompts_share_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", AZURE + "\n".join(f"2023-11-16 18:15:4{n},374,4" for n in range(5)))
    sent = draw_traffic(read_traffic(path), 5, 2048, seed=0)
    assert len({request.prompt[0] for request in sent}) == 5
    assert {len(request.prompt) for request in sent} == {374}
    requests = read_replayed(path, 3)
    assert [one.due for one in requests] == [0, 1, 2]
    assert len({int(key) for one in requests for key in one.text.keys(2)}) == 3 * 378 / 2


def test_ids_of_any_size_become_small_numbers(tmp_path: Path) -> None:
    """Ids that are equal modulo a power of two are different blocks, for all who use them."""
    lines = [mooncake(timestamp=n, input_length=1024, hash_ids=[5 + n * 2**40, -(2**64) - n]) for n in range(6)]
    path = write(tmp_path / "t.jsonl", *lines, lines[0])
    requests = read_traffic(path).requests
    assert {block for request in requests for block in request.blocks} == set(range(12))
    assert requests[0].blocks == requests[1].blocks == (0, 1)
    keys = [one.text.keys(512)[:2].tolist() for one in read_replayed(path, 9)]
    assert len({key for pair in keys for key in pair}) == 12
    sent = draw_traffic(read_traffic(path), 9, 50_000, seed=0)
    assert len({request.prompt for request in sent}) == 6


@pytest.mark.parametrize(
    "header",
    [
        '"TIMESTAMP","ContextTokens","GeneratedTokens"',
        " TIMESTAMP , ContextTokens,\tGeneratedTokens\r",
        "\ufeffTIMESTAMP,ContextTokens,GeneratedTokens",
    ],
)
def test_headers_of_csv(tmp_path: Path, header: str) -> None:
    path = write(tmp_path / "t.csv", header, '"2023-11-16 18:15:46" , "374", 44\r')
    assert read_traffic(path).requests == (TraceRequest(0.0, 374, 44, ()),)


def turn(session: str, tokens: int, answer: int = 12, **fields: Any) -> dict[str, Any]:
    return {"session_id": session, "input_length": tokens, "output_length": answer} | fields


def test_turns_repeat_what_was_said_and_wait_for_their_delay(tmp_path: Path) -> None:
    """AIPerf's lines hold the new text of a turn. 500 + 12 tokens fill the first block of the second prompt."""
    trace = read_traffic(
        write(
            tmp_path / "t.jsonl",
            turn("a", 500, timestamp=1000, hash_ids=[7]),
            turn("b", 600, timestamp=1500, hash_ids=[8, 9]),
            turn("a", 700, delay=2000.5, hash_ids=[11, 2**70]),
            turn("a", 100, delay=500, hash_ids=[12]),
            turn("b", 624, timestamp=9000, hash_ids=[8, 13]),
        )
    )
    assert (trace.format, trace.block_tokens, trace.timed) == ("AIPerf", 512, True)
    assert [(r.due, r.prompt_tokens) for r in trace.requests] == [
        (0, 500),
        (0.5, 600),
        (pytest.approx(2.0005), 1212),
        (pytest.approx(2.5005), 1324),
        (8, 624),
    ]
    first, other, second, third, whole = (request.blocks for request in trace.requests)
    assert [len(blocks) for blocks in (first, other, second, third, whole)] == [1, 2, 3, 3, 2]
    assert second[:2] == third[:2]
    assert whole[0] == other[0]
    assert len({*first, *other, *second, *third, *whole}) == 8
    assert "3 requests are later turns" in trace.notes[0]


def test_turns_with_a_delay_wait_for_the_answer_before(tmp_path: Path) -> None:
    lines = [turn("a", 30, delay=7), turn("b", 30), turn("b", 30, delay=2), turn("a", 3000, delay=1), turn("a", 9)]
    trace = read_traffic(write(tmp_path / "t.jsonl", *lines))
    sent = draw_traffic(trace, 9, 2048, seed=0, longest=200)
    assert [(request.due, request.after) for request in sent] == [(0, None), (0.002, 0), (0.007, None)]
    assert [(request.due, request.after) for request in draw_traffic(trace, 9, 2048, seed=0)][2:] == [
        (0.007, None),
        (0.001, 2),
        (0, 3),
    ]


def test_turns_without_ids_share_their_conversation(tmp_path: Path) -> None:
    trace = read_traffic(write(tmp_path / "t.jsonl", turn("a", 300, 40), turn("b", 600), turn("a", 250, 20, delay=2)))
    assert [(r.due, r.prompt_tokens) for r in trace.requests] == [(0, 300), (0, 600), (0.002, 590)]
    assert "first turns are due at 0" in trace.notes[1]
    alone = read_traffic(write(tmp_path / "u.jsonl", turn("a", 300, 40), turn("b", 600)))
    assert (alone.block_tokens, alone.timed, {r.blocks for r in alone.requests}) == (0, False, {()})


def test_whole_prompts_of_turns_are_not_repeated(tmp_path: Path) -> None:
    whole = {"context_mode": "message_array_with_responses"}
    trace = read_traffic(write(tmp_path / "t.jsonl", turn("a", 300, **whole), turn("a", 350, delay=1, **whole)))
    assert [request.prompt_tokens for request in trace.requests] == [300, 350]


def test_bailian_has_seconds_and_small_blocks(tmp_path: Path) -> None:
    line = {"chat_id": 1, "parent_chat_id": -1, "turn": 1, "type": "text", "input_length": 40, "output_length": 9}
    lines = [line | {"timestamp": 61.5, "hash_ids": [1089, 1090, 1091]}]
    lines.append(line | {"chat_id": 2, "parent_chat_id": 1, "timestamp": 62.5, "hash_ids": [1089, 1090, 9]})
    trace = read_traffic(write(tmp_path / "t.jsonl", *lines))
    assert (trace.format, trace.block_tokens) == ("Bailian", 16)
    assert trace.requests == (TraceRequest(0, 40, 9, (0, 1, 2)), TraceRequest(1, 40, 9, (0, 1, 3)))


LINES = (
    b'{"session_id": "a", "delay": 3, "timestamp": 0, "input_length": 700, "output_length": 4, "hash_ids": [1, 2]}',
    b'{"prompt": [1, 2, 3], "max_tokens": 4, "due": 1.5}',
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44",
    b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,GPT-4,472,18,490,API log",
    b'{"conversations": [{"from": "human", "value": "x"}]}',
    b'[{"role": "user", "content": [{"type": "text", "text": "hi"}]}]',
)
BITS = (
    *(b"1e999", b"null", b"true", b"[]", b"{}", b'""', b"-1", b"NaN", b"1.5", b"0", b"9" * 25, b"1" * 5000),
    *(b"\xff", b"\0", b"\xef\xbb\xbf", b"\n", b"\r", b"\\ud800", b"\xe2\x80\xa8", b'"', b",", b":", b"_", b"[" * 5000),
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
