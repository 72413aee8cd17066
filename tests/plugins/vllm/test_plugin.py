"""When the plug-in takes part, and what it says when it cannot."""

from __future__ import annotations

from collections import defaultdict
from importlib.metadata import entry_points

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkbench.kernels import cpu
from chunkbench.kernels.plan import Plan
from chunkbench.plugins.vllm import plugin, register
from chunkbench.plugins.vllm.forest import BlockForest
from tests.kernels.prompt_pieces import planned, prompts


def test_vllm_finds_it_by_its_entry_point() -> None:
    (found,) = entry_points(group="vllm.general_plugins", name=plugin.NAME)
    assert found.load() is register


def test_it_does_nothing_unless_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "vllm_version", lambda: "0.1.0")
    for value in (None, "", "other", "chunkbench2"):
        if value is None:
            monkeypatch.delenv("VLLM_PLUGINS", raising=False)
        else:
            monkeypatch.setenv("VLLM_PLUGINS", value)
        register()


def test_a_version_that_does_not_fit_is_refused_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "other,chunkbench")
    monkeypatch.setattr(plugin, "vllm_version", lambda: "0.33.1")
    with pytest.raises(RuntimeError, match=r"chunkbench \S+ fits vLLM 0.32; this is vLLM 0.33.1"):
        register()


@pytest.mark.parametrize(
    ("found", "why"), [(None, "not installed"), ("0.3.2", "this is vLLM 0.3.2"), ("0.320.1", "this is vLLM 0.320.1")]
)
def test_why_not(monkeypatch: pytest.MonkeyPatch, found: str | None, why: str) -> None:
    monkeypatch.setattr(plugin, "vllm_version", lambda: found)
    assert why in plugin.why_not("cpu")


def test_a_version_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "vllm_version", lambda: "0.32.0")
    assert plugin.why_not("cpu") == cpu.why_missing()
    if not torch.cuda.is_available():
        assert "no NVIDIA GPU" in plugin.why_not("cuda")


SIZE = 16


def check(plan: Plan, tables: list[list[int]], lengths: list[int]) -> None:
    """Every row reads exactly its blocks in order; rows that share full blocks read them in common segments."""
    rows = len(tables)
    assert sorted(plan.order.tolist()) == list(range(rows))
    read: dict[int, list[int]] = defaultdict(list)
    for segment in plan.segments:
        for position in range(segment.begin, segment.end):
            read[int(plan.order[position])] += segment.chunks.tolist()
        if segment.end - segment.begin > 1:
            for row in plan.order[segment.begin : segment.end]:
                shared = len(read[int(row)])
                assert shared * SIZE <= lengths[int(row)], "only full blocks are shared"
    assert [read[row] for row in range(rows)] == tables
    assert plan.last_chunks.tolist() == [table[-1] for table in tables]
    assert plan.last_tokens.tolist() == [(length - 1) % SIZE + 1 for length in lengths]
    # No block that two rows have in common stands in two segments, unless it is the last, partial one.
    places = [int(chunk) for segment in plan.segments for chunk in segment.chunks]
    partial = {table[-1] for table, length in zip(tables, lengths, strict=True) if length % SIZE}
    twice = {chunk for chunk in places if places.count(chunk) > 1}
    assert twice <= partial


def padded(tables: list[list[int]]) -> np.ndarray:
    width = max(map(len, tables)) + 2
    return np.array([table + [7] * (width - len(table)) for table in tables], np.int32)


def tables_of(drawn: list[list[int]]) -> tuple[list[list[int]], list[int]]:
    """Tables of sequences with these tokens, which share blocks as a prefix tree does, and their lengths."""
    return planned(drawn, SIZE)[1], [len(tokens) for tokens in drawn]


@given(prompts())
@settings(max_examples=150, deadline=None)
def test_a_plan_reads_what_the_tables_say(drawn: list[list[int]]) -> None:
    tables, lengths = tables_of(drawn)
    check(BlockForest(SIZE).plan(padded(tables), np.array(lengths)), tables, lengths)


@given(prompts(), st.lists(st.integers(1, 2 * SIZE), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_plans_grow_with_their_tables(drawn: list[list[int]], steps: list[int]) -> None:
    tables, lengths = tables_of(drawn)
    planner, free = BlockForest(SIZE), 1000
    for step, grown in enumerate(steps):
        for row in range(len(tables)):
            lengths[row] += grown if row == step % len(tables) else 1
            while len(tables[row]) * SIZE < lengths[row]:
                tables[row].append(free)
                free += 1
        check(planner.plan(padded(tables), np.array(lengths)), tables, lengths)


def test_the_same_plan_while_no_block_begins() -> None:
    planner = BlockForest(SIZE)
    tables = [[0, 1, 2], [0, 1, 3], [0, 4]]
    first = planner.plan(padded(tables), np.array([40, 41, 20]))
    assert planner.plan(padded(tables), np.array([41, 42, 21])) is first
    check(first, tables, [41, 42, 21])


def test_a_new_block_changes_little() -> None:
    planner = BlockForest(SIZE)
    tables = [[0, 1, 2], [0, 1, 3], [0, 4]]
    first = planner.plan(padded(tables), np.array([48, 41, 20]))
    tables[0].append(5)
    second = planner.plan(padded(tables), np.array([49, 42, 21]))
    growth = second.growth_since(first)
    assert growth is not None
    assert [array.tolist() for array in growth] == [[0], [5]]
    check(second, tables, [49, 42, 21])


def test_a_longer_shared_prefix_is_no_growth() -> None:
    planner = BlockForest(SIZE)
    first = planner.plan(padded([[0, 1, 2], [0, 1, 3]]), np.array([40, 41]))
    second = planner.plan(padded([[0, 1, 9, 2], [0, 1, 9, 3]]), np.array([56, 57]))
    assert second.growth_since(first) is None


@pytest.mark.parametrize("change", ["leaves", "joins", "other blocks", "shorter"])
def test_other_changes_are_found_anew(change: str) -> None:
    planner = BlockForest(SIZE)
    tables, lengths = [[0, 1, 2], [0, 1, 3], [0, 4]], [40, 41, 20]
    planner.plan(padded(tables), np.array(lengths))
    if change == "leaves":
        tables, lengths = tables[1:], lengths[1:]
    elif change == "joins":
        tables, lengths = [*tables, [0, 1, 9]], [*lengths, 48]
    elif change == "other blocks":
        tables[2] = [8, 9]
    else:
        tables[0], lengths[0] = [0, 1], 32
    check(planner.plan(padded(tables), np.array(lengths)), tables, lengths)


def test_two_sequences_with_the_same_partial_block_read_it_each() -> None:
    tables, lengths = [[0, 1], [0, 1]], [20, 20]
    check(BlockForest(SIZE).plan(padded(tables), np.array(lengths)), tables, lengths)


def test_ids_keep_64_bits_while_tables_grow() -> None:
    """vLLM's tables have 32 bits. An id times the bytes of a block, 2^19 for Llama2-7B, needs more."""
    forest = BlockForest(16)
    first = forest.plan(np.array([[5000, 6000], [5000, 7000]], np.int32), np.array([32, 32]))
    grown = forest.plan(np.array([[5000, 6000, 8000], [5000, 7000, 9000]], np.int32), np.array([33, 33]))
    growth = grown.growth_since(first)
    assert growth is not None
    for ids in (first.chunks, grown.chunks, growth[1], grown.last_chunks):
        assert ids.dtype == np.int64
    assert sorted((growth[1] * 2**19).tolist()) == [8000 * 2**19, 9000 * 2**19]
