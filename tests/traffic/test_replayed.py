"""Requests of replays: drawn, from texts, from files, and what is live of them."""

from __future__ import annotations

import json
import math
import random
from itertools import combinations, pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkbench.attention.tokens import alike
from chunkbench.bench.experiment.forest import prompt_paths
from chunkbench.bench.experiment.tree import Forest, lengths_in, tokens_in
from chunkbench.bench.experiment.tree_reader import read_forest
from chunkbench.traffic import Arrivals, TraceRequest, due_times
from chunkbench.traffic.arrivals import LENGTHS, LogNormal
from chunkbench.traffic.conversations import Conversations, from_conversations
from chunkbench.traffic.generated import GENERATED, Demand
from chunkbench.traffic.live import LiveRequest, cut_forest, live_at
from chunkbench.traffic.prompts import Prompts, draw_prompts
from chunkbench.traffic.replayed import ReplayRequest, from_lengths, from_prompts, from_texts, read_replayed, truncated
from chunkbench.traffic.texts import read_texts


def common(first: ReplayRequest, second: ReplayRequest) -> int:
    """Leading tokens that two texts share."""
    least = min(first.text.total, second.text.total)
    differ = first.text.tokens(0, least) != second.text.tokens(0, least)
    return int(np.argmax(differ)) if differ.any() else least


TREE = ((10, ((8, 2), (8, 1))), (5, 1))


@pytest.mark.parametrize(
    "prompts", [Prompts(40), Prompts(40, 24), Prompts(40, 40), Prompts(40, 24, 3), Prompts(40, tree=TREE)]
)
def test_texts_share_what_the_drawn_prompts_of_servers_share(prompts: Prompts) -> None:
    requests = from_prompts(prompts, 7, [float(n) for n in range(8)])
    drawn = draw_prompts(prompts, 8, 10**6, 0)
    assert [(one.due, one.text.prompt, one.text.total, one.answer) for one in requests] == [
        (n, 40, 47, 7) for n in range(8)
    ]
    for i in range(8):
        for j in range(i):
            assert common(requests[i], requests[j]) == alike(drawn[i], drawn[j])


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
        ("conversations", {"n_s": 8}, "does not take n_s and prompts"),
        ("chat", {"prompts": 0}, "at least one turn and one system prompt"),
    ],
)
def test_what_traffic_cannot_use_is_refused(name: str, asked: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        GENERATED[name](Demand(1.0, 5, 0, **asked))


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


def test_drawn_times_replace_those_of_a_trace(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", *(mooncake(5, 512, 8, 0) for _ in range(400)))
    assert {one.due for one in read_replayed(path, 400)} == {0.0}
    drawn = [one.due for one in read_replayed(path, 400, rate=5.0, seed=1)]
    assert drawn == due_times(Arrivals(), 5.0, 400, 1)


def draws(law: LogNormal, count: int = 40_000) -> list[int]:
    chance = random.Random("test")
    return [law.draw(chance) for _ in range(count)]


@pytest.mark.parametrize(
    ("name", "prompt", "answer"),
    # Figure 11 of the PagedAttention paper, to whole tokens.
    [("sharegpt", 161, 338), ("alpaca", 19, 58)],
)
def test_the_published_means(name: str, prompt: int, answer: int) -> None:
    for law, mean in zip(LENGTHS[name], (prompt, answer), strict=True):
        drawn = draws(law)
        assert fmean(drawn) == pytest.approx(mean, rel=0.02)
        assert median(drawn) == pytest.approx(mean / math.exp(0.5), rel=0.05)


@pytest.mark.parametrize("law", [LogNormal(2, 1.0, 9), LogNormal(50, 2.0, 100), LogNormal(8.5, 0.3, 10)])
def test_rounding_and_cutting_do_not_move_the_mean(law: LogNormal) -> None:
    drawn = draws(law)
    assert fmean(drawn) == pytest.approx(law.mean, rel=0.02)
    assert all(isinstance(one, int) for one in drawn)
    assert min(drawn) >= 1
    assert max(drawn) == law.most


@pytest.mark.parametrize(("mean", "sigma", "most"), [(1, 1, 9), (9, 1, 9), (5, 0, 9), (float("nan"), 1, 9)])
def test_impossible_laws_are_refused(mean: float, sigma: float, most: int) -> None:
    with pytest.raises(ValueError, match="1 < mean < most and sigma > 0"):
        LogNormal(mean, sigma, most)


def request(due: float, prompt: int, answer: int, *blocks: int) -> TraceRequest:
    return TraceRequest(due, prompt, answer, blocks)


def test_a_request_is_live_from_its_due_time_until_its_last_token() -> None:
    requests = [request(0, 8, 4, 0), request(1, 9, 2, 1), request(1, 7, 9, 2), request(4, 5, 3, 3)]
    assert live_at(requests, 0.5) == (1, [LiveRequest((0,), 8, 2), LiveRequest((1,), 9, 0), LiveRequest((2,), 7, 0)])
    assert live_at(requests, 0.5, most=1) == (1, [LiveRequest((0,), 8, 2)])
    assert live_at(requests, 0.5, at=2) == (2, [LiveRequest((2,), 7, 2)])
    assert live_at(requests, 0.5, at=4.25) == (4.25, [LiveRequest((2,), 7, 6), LiveRequest((3,), 5, 0)])


@pytest.mark.parametrize(("token_s", "at"), [(0.5, 9), (0.5, -1), (0.5, float("nan")), (float("nan"), 1), (0, 0)])
def test_an_instant_without_a_request_is_an_error(token_s: float, at: float) -> None:
    with pytest.raises(ValueError, match=r"no request is live at|must be a number above 0"):
        live_at([request(0, 8, 4)], token_s, at)


def test_chains_of_prompts_are_deep_forests_and_too_deep_ones_errors() -> None:
    chain = [LiveRequest(tuple(range(n)), 16 * n, 1) for n in range(1, 66)]
    assert read_forest(cut_forest(chain, 16)) == cut_forest(chain, 16)
    longer = [LiveRequest(tuple(range(n)), 16 * n, 1) for n in range(1, 400)]
    with pytest.raises(ValueError, match="more than 64 levels"):
        cut_forest(longer, 16)


@st.composite
def live_requests(draw: st.DrawFn) -> list[LiveRequest]:
    """Prompts of blocks of 4 tokens whose ids name all blocks before them."""
    live = []
    for _ in range(draw(st.integers(1, 8))):
        path = draw(st.lists(st.integers(0, 1), min_size=1, max_size=4))
        blocks = tuple(int("1" + "".join(map(str, path[: n + 1])), 2) for n in range(len(path)))
        live.append(LiveRequest(blocks, 4 * len(path) - draw(st.integers(0, 3)), draw(st.integers(0, 3))))
    return live


def shared(forest: Forest) -> list[int]:
    """Tokens in common of each two sequences, sorted."""
    paths = prompt_paths(lengths_in(forest), None, 1, forest)
    return sorted(sum(s.tokens for s in one if s in other) for one, other in combinations(paths, 2))


@settings(max_examples=80, deadline=None)
@given(live_requests())
def test_each_two_sequences_share_what_their_prompts_share(live: list[LiveRequest]) -> None:
    tokens = [[(block, place) for block in one.blocks for place in range(4)][: one.prompt] for one in live]
    common = [sum(a == b for a, b in zip(*pair, strict=False)) for pair in combinations(tokens, 2)]
    forest = cut_forest(live, 4)
    assert shared(forest) == sorted(common)
    assert sorted(lengths_in(forest)) == sorted(one.prompt + one.generated for one in live)
    distinct = len({token for prompt in tokens for token in prompt}) + sum(one.generated for one in live)
    # A lone sequence keeps its tokens to itself, so they are stored once, too.
    assert tokens_in(forest) == distinct
