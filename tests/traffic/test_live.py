"""The forest of the prompts that are live at an instant of a trace."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkbench.bench.experiment.forest import prompt_paths
from chunkbench.bench.experiment.tree import Forest, lengths_in, tokens_in
from chunkbench.bench.experiment.tree_reader import read_forest
from chunkbench.traffic import TraceRequest
from chunkbench.traffic.live import LiveRequest, cut_forest, live_at


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


def test_prompts_share_leading_blocks_and_part_of_a_partial_one() -> None:
    live = [
        LiveRequest((0, 1, 2), 1100, 50),  # 76 tokens of block 2
        LiveRequest((0, 1, 2), 1100, 0),
        LiveRequest((0, 9), 600, 30),
        LiveRequest((0, 1, 2, 4), 1600, 7),  # all of block 2, so 76 tokens are shared
        LiveRequest((5,), 10, 1),
    ]
    forest = cut_forest(live, 512)
    assert forest == ((512, ((1100 - 512, (50, 0, 507)), (0, (118,)))), (0, (11,)))
    assert read_forest(forest) == forest


def test_a_trace_that_says_nothing_about_sharing_keeps_its_order() -> None:
    assert cut_forest([LiveRequest((), 30, 2), LiveRequest((), 50, 0), LiveRequest((), 9, 1)], 0) == (
        (0, (32, 50, 10)),
    )


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
