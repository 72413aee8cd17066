"""Requests of replays: what their texts share."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkbench.traffic.conversations import Conversations, from_conversations
from chunkbench.traffic.generated import GENERATED, Demand
from chunkbench.traffic.lengths import LENGTHS
from chunkbench.traffic.prompts import Prompts, draw_prompts
from chunkbench.traffic.replayed import ReplayRequest, from_lengths, from_prompts, from_texts, truncated
from chunkbench.traffic.texts import read_texts


def common(first: ReplayRequest, second: ReplayRequest) -> int:
    """Leading tokens that two texts share."""
    least = min(first.text.total, second.text.total)
    differ = first.text.tokens(0, least) != second.text.tokens(0, least)
    return int(np.argmax(differ)) if differ.any() else least


def leading(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    differ = [a != b for a, b in zip(first, second, strict=True)]
    return differ.index(True) if True in differ else len(first)


@pytest.mark.parametrize(
    "prompts",
    [
        Prompts(40),
        Prompts(40, 24),
        Prompts(40, 40),
        Prompts(40, 24, 3),
        Prompts(40, tree=((10, ((8, 2), (8, 1))), (5, 1))),
    ],
)
def test_texts_share_what_the_drawn_prompts_of_servers_share(prompts: Prompts) -> None:
    requests = from_prompts(prompts, 7, [float(n) for n in range(8)])
    drawn = draw_prompts(prompts, 8, 10**6, 0)
    assert [(one.due, one.text.prompt, one.text.total, one.answer) for one in requests] == [
        (n, 40, 47, 7) for n in range(8)
    ]
    for i in range(8):
        for j in range(i):
            assert common(requests[i], requests[j]) == leading(drawn[i], drawn[j])


def test_drawn_lengths_behind_system_prompts() -> None:
    requests = from_lengths(LENGTHS["alpaca"], [0.5 * n for n in range(400)], 3, n_s=100, prompts=2)
    assert [common(requests[0], requests[n]) for n in (1, 2, 3, 4)] == [0, 100, 0, 100]
    assert np.mean([one.text.prompt - 100 for one in requests]) == pytest.approx(19, rel=0.15)
    assert np.mean([one.answer for one in requests]) == pytest.approx(58, rel=0.15)
    assert all(one.text.total == one.text.prompt + one.answer for one in requests)
    private = from_lengths(LENGTHS["alpaca"], [0.0] * 9, 3)
    assert {common(private[0], one) for one in private[1:]} == {0}
    assert [one.text.prompt + 100 for one in private] == [one.text.prompt for one in requests[:9]]
    with pytest.raises(ValueError, match="prompts at least 1"):
        from_lengths(LENGTHS["alpaca"], [0.0], 3, prompts=0)


def test_cut_prompts_share_nothing_and_the_others_what_they_did() -> None:
    before = from_lengths(LENGTHS["alpaca"], [0.5 * n for n in range(100)], 3, n_s=100)
    after = truncated(before, 110)
    assert [(one.due, one.answer) for one in after] == [(one.due, one.answer) for one in before]
    assert [one.text.prompt for one in after] == [min(one.text.prompt, 110) for one in before]
    cut = [new for old, new in zip(before, after, strict=True) if old.text.prompt > 110]
    whole = [one for one in after if one in before]
    assert len(cut) + len(whole) == 100
    assert min(len(cut), len(whole)) > 20
    tokens = [set(one.text.tokens(0, one.text.total).tolist()) for one in (*cut, *before)]
    assert sum(map(len, tokens[: len(cut)])) == len(set().union(*tokens[: len(cut)]))
    assert set().union(*tokens[: len(cut)]).isdisjoint(set().union(*tokens[len(cut) :]))
    assert {common(whole[0], one) for one in whole[1:]} == {100}
    assert truncated(before, 4096) == before


def conversations_of(requests: list[ReplayRequest], system: int) -> list[list[ReplayRequest]]:
    """Requests by conversation: the first token behind the system prompt is the conversation's own."""
    found: dict[int, list[ReplayRequest]] = {}
    for one in requests:
        found.setdefault(int(one.text.tokens(system, system + 1)[0]), []).append(one)
    return list(found.values())


def test_a_turn_repeats_all_that_was_said() -> None:
    talk = Conversations(turns=3, lengths=LENGTHS["alpaca"], think_s=5.0, system_prompt=50)
    requests = from_conversations(talk, rate=2.0, count=300, seed=1)
    assert len(requests) == 300
    assert [one.due for one in requests] == sorted(one.due for one in requests)
    groups = conversations_of(requests, 50)
    assert max(map(len, groups)) == 3
    for group in groups:
        for earlier, later in pairwise(group):
            assert common(earlier, later) == earlier.text.total < later.text.prompt
    assert {common(groups[0][0], group[0]) for group in groups[1:]} == {50}
    pauses = [later.due - earlier.due for group in groups for earlier, later in pairwise(group)]
    assert np.mean(pauses) == pytest.approx(5.0, rel=0.2)


def test_conversations_reach_their_rate_and_go_on_alike() -> None:
    talk = Conversations(turns=4, lengths=LENGTHS["alpaca"], think_s=2.0, system_prompts=2, system_prompt=8)
    requests = from_conversations(talk, rate=10.0, count=3000, seed=0)
    steady = [one.due for one in requests if one.due > 20]
    assert len(steady) / (steady[-1] - 20) == pytest.approx(10.0, rel=0.1)
    assert from_conversations(talk, 10.0, 50, 0) == requests[:50]
    assert from_conversations(talk, 10.0, 50, 1) != requests[:50]
    assert len({int(one.text.tokens(0, 1)[0]) for one in requests}) == 2


@pytest.mark.parametrize("wrong", [{"turns": 0}, {"think_s": 0.0}, {"system_prompt": -1}, {"system_prompts": 0}])
def test_impossible_conversations_are_refused(wrong: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"turns": 2, "lengths": LENGTHS["alpaca"], "think_s": 1.0}
    with pytest.raises(ValueError, match="at least"):
        Conversations(**usual | wrong)


def test_named_traffic() -> None:
    fixed = GENERATED["fixed"](Demand(4.0, 200, 0, n_p=64, n_s=48, n_c=9, prompts=2))
    assert {(one.text.prompt, one.answer) for one in fixed} == {(64, 9)}
    assert [common(fixed[0], fixed[n]) for n in (1, 2)] == [0, 48]
    assert 199 / fixed[-1].due == pytest.approx(4.0, rel=0.2)
    tree = GENERATED["fixed"](Demand(4.0, 3, 0, n_p=64, n_c=9, tree=((10, ((8, 1), (8, 2))),)))
    assert [common(tree[2], one) for one in tree[:2]] == [10, 18]
    for name, tokens in (("sharegpt", 161), ("alpaca", 19)):
        drawn = GENERATED[name](Demand(4.0, 500, 0, n_s=32))
        assert common(drawn[0], drawn[1]) == 32
        assert np.mean([one.text.prompt - 32 for one in drawn]) == pytest.approx(tokens, rel=0.15)
    chat = GENERATED["chat"](Demand(4.0, 500, 0, n_s=32))
    assert len(chat) == 500
    assert max(map(len, conversations_of(chat, 32))) > 1
    talks = GENERATED["conversations"](Demand(4.0, 70, 0))
    assert (len(talks), {one.answer for one in talks}) == (70, {512})


def test_texts_are_bytes_and_a_turn_repeats_what_was_said(tmp_path: Path) -> None:
    lines = [
        {"name": "brief", "messages": [{"role": "system", "content": "Be brief."}]},
        {"begin": "brief", "turns": [{"text": "Où ?"}, {"text": "Why?", "delay": 1e4}]},
        {"begin": "brief", "messages": [{"role": "user", "content": "Oh"}]},
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
    first, other, turn = from_texts(read_texts(str(tmp_path / "t.jsonl")), 9.0, 3, seed=0)
    said = "<|system|>\nBe brief.\n<|user|>\nOù ?\n".encode()
    assert bytes(first.text.tokens(0, first.text.prompt).tolist()) == said
    assert (first.answer, turn.text.prompt) == (512, len(said) + 512 + len("<|user|>\nWhy?\n"))
    assert (common(first, turn), common(first, other)) == (len(said) + 512, said.index("ù".encode()))
    assert turn.due == first.due + 1e4
    assert len({*first.text.tokens(len(said), 9999), *other.text.tokens(other.text.prompt, 9999)}) == 1024


@pytest.mark.parametrize(
    ("name", "asked", "why"),
    [
        ("fixed", {"n_p": 8}, "needs n_p and n_c"),
        ("fixed", {"n_p": 8, "n_c": 0}, "needs tokens in prompt and answer"),
        ("fixed", {"n_p": 8, "n_c": 2, "n_s": 9}, "do not fit"),
        ("fixed", {"n_p": 8, "n_c": 2, "n_s": 3, "tree": ((4, 2),)}, "no use for n_s beside a tree"),
        ("sharegpt", {"n_p": 8}, "`sharegpt` has no use for n_p"),
        ("alpaca", {"n_c": 8, "tree": ((4, 2),)}, "no use for n_c and tree"),
        ("chat", {"n_p": 8}, "`chat` has no use for n_p"),
        ("conversations", {"n_p": 8}, "`conversations` has no use for n_p"),
        ("conversations", {"n_s": 8}, "no use for n_s and prompts"),
        ("chat", {"prompts": 0}, "at least one turn and one system prompt"),
    ],
)
def test_what_traffic_cannot_use_is_refused(name: str, asked: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        GENERATED[name](Demand(1.0, 5, 0, **asked))
