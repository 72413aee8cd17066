"""Several query rows of a sequence, windows, soft-capping and sinks, on every instruction set, against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkbench import ChunkAttention
from chunkbench.attention.errors import WrongTokens
from chunkbench.attention.tensors import WrongTensor
from chunkbench.draft import MOST_ROWS
from chunkbench.kernels import cpu
from chunkbench.kernels.cpu.decode import TppNative
from chunkbench.kernels.cpu.store import PackedStore
from chunkbench.kernels.items import PromptRows
from chunkbench.kernels.planners import Planner, flat, node_wise, two_phase
from chunkbench.kernels.query_rows import QueryRows
from chunkbench.kernels.reference import attention
from tests.attention.contexts import Contexts, seen_by
from tests.kernels.pieces import instruction_set, prompts

if cpu.native() is None:
    pytest.skip(cpu.why_missing(), allow_module_level=True)

ISAS = cpu.required().isas()
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[list[int]], list[int], tuple[int, ...] | None]:
    """Prompts, the number of rows of each, and the tree of their drafts, if all drafts are one."""
    drawn = [one for one in draw(prompts()) if one][:8]
    most = min(MOST_ROWS, *map(len, drawn))
    if draw(st.booleans()):
        count = draw(st.integers(1, min(most, 40)))
        parents = (-1, *(draw(st.integers(-1, token - 1)) for token in range(1, count)))
        return drawn, [count] * len(drawn), parents
    return drawn, [min(most, draw(st.sampled_from([1, 1, 2, 5, most]))) for _ in drawn], None


@settings(max_examples=40)
@given(
    step=steps(),
    shape=st.sampled_from([(1, 1, 16, 16), (4, 2, 64, 32), (6, 1, 32, 64), (8, 8, 128, 64)]),
    dtype=st.sampled_from(list(TOLERANCE)),
    planner=st.sampled_from([two_phase, node_wise, flat]),
    window=st.sampled_from([None, None, 1, 7, 40, 64, 130]),
    softcap=st.sampled_from([0.0, 0.0, 2.0]),
    with_sinks=st.booleans(),
    computes_prompt=st.booleans(),
)
def test_rows_read_what_they_should(
    step: tuple[list[list[int]], list[int], tuple[int, ...] | None],
    shape: tuple[int, int, int, int],
    dtype: torch.dtype,
    planner: Planner,
    window: int | None,
    softcap: float,
    with_sinks: bool,
    computes_prompt: bool,
) -> None:
    (drawn, counts, parents), (heads, kv_heads, dim, chunk) = step, shape
    cache = ChunkAttention(heads, dim, kv_heads, chunk, dtype=dtype, kernel="native")
    contexts = Contexts(cache)
    sequences = [contexts.add(prompt) for prompt in drawn]
    store, plan = cache._store, cache.forest
    assert isinstance(store, PackedStore)
    sinks = contexts.normal(heads).float() if with_sinks else None
    query_rows = QueryRows(np.array(counts), parents)
    assert plan.order.max() == len(sequences) - 1
    prompt, seen = (), []
    for sequence, count in zip(sequences, counts, strict=True):
        seen.append((sequence, seen_by(len(contexts.tokens[sequence]), count, parents, window)))
    if computes_prompt:  # the whole first prompt, in the same step
        length = len(drawn[0])
        prompt = (PromptRows(np.array(cache._tree.path(sequences[0])), 0, length),)
        seen.append((sequences[0], seen_by(length, length, None, window)))
    q = contexts.normal(sum(len(rows) for _, rows in seen), heads, dim)
    order = np.random.default_rng(0).permutation(len(q)) if computes_prompt else np.arange(len(q))
    k_v = {sequence: contexts.kv[sequence][0] for sequence in sequences}
    starts = np.cumsum([0, *(len(rows) for _, rows in seen)])
    expected = torch.cat(
        [
            attention(q[torch.from_numpy(order[start : start + len(rows)])], *k_v[one], None, rows, softcap, sinks)
            for (one, rows), start in zip(seen, starts.tolist(), strict=False)
        ]
    )
    for isa in ISAS:
        with instruction_set(isa):
            kernel = TppNative(store, heads, planner, softcap=softcap)
        kernel.plan(plan, prompt, order, query_rows, window)
        out = torch.full_like(q, float("nan"))
        kernel.decode(q, out, sinks=sinks)
        error = (out[torch.from_numpy(order)].double() - expected).abs().max() / expected.abs().max()
        assert error < TOLERANCE[dtype], isa


def test_rows_follow_appends_and_new_counts_make_a_new_plan() -> None:
    cache = ChunkAttention(2, 16, chunk_size=16, kernel="native")
    contexts = Contexts(cache)
    for row in range(3):
        contexts.add([*range(40), 100 + row])
    rows = QueryRows.alike(3, 4)
    for step in range(20):
        contexts.step()
        if step == 10:
            rows = QueryRows(np.array([4, 1, 9]))
        cache.plan(rows)
        q = contexts.normal(rows.total, 2, 16)
        out = cache.attend(0, q).double()
        for sequence, part, of in zip(
            contexts.tokens, out.split(rows.counts.tolist()), q.split(rows.counts.tolist()), strict=True
        ):
            seen = seen_by(len(contexts.tokens[sequence]), len(part), None, None)
            torch.testing.assert_close(part, attention(of, *contexts.kv[sequence][0], None, seen), atol=1e-5, rtol=0)
    cache.plan()
    assert cache.attend(0, contexts.normal(3, 2, 16)).shape == (3, 2, 16)


def test_another_window_makes_a_new_plan() -> None:
    cache = ChunkAttention(2, 16, chunk_size=16, kernel="native")
    contexts = Contexts(cache)
    (sequence,) = [contexts.add(range(40))]
    store = cache._store
    assert isinstance(store, PackedStore)
    kernel, q = TppNative(store, 2), contexts.normal(1, 2, 16)
    for window in (None, 5, 9):
        kernel.plan(cache.forest, window=window)
        out = torch.empty_like(q)
        kernel.decode(q, out)
        seen = seen_by(40, 1, None, window)
        expected = attention(q, *contexts.kv[sequence][0], None, seen)
        torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=0)


def test_a_draft_that_cannot_be() -> None:
    cache = ChunkAttention(2, 16, chunk_size=16, kernel="native")
    contexts = Contexts(cache)
    contexts.add([1, 2, 3])
    with pytest.raises(WrongTokens, match="fewer tokens than query rows"):
        cache.plan(QueryRows.alike(1, 4))
    for wrong in (QueryRows.alike(2, 1), QueryRows.alike(1, 0), QueryRows.alike(1, 257)):
        with pytest.raises(WrongTokens, match="one number from 1 to 256 for each of 1 sequences"):
            cache.plan(wrong)
    cache.plan(QueryRows.alike(1, 2))
    with pytest.raises(WrongTensor, match=r"\(2, 2, 16\)"):
        cache.attend(0, contexts.normal(1, 2, 16))
    other = ChunkAttention(2, 16, kernel="torch")
    other.add_sequence([1, 2], torch.zeros(2, 2, 16), torch.zeros(2, 2, 16))
    with pytest.raises(ValueError, match="native"):
        other.plan(QueryRows.alike(1, 2))
