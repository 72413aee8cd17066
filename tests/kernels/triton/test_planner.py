"""What is decided before Triton's kernels run: the plan, the tuning table and the search that fills it, compilation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="triton is not installed")

from chunkbench.bench.measure.tune import Trial, Tuning, best, merges, search, tiles
from chunkbench.cli.tune import command
from chunkbench.kernels.items import items_of_forest, items_of_tables
from chunkbench.kernels.planners import flat, two_phase
from chunkbench.kernels.triton import KV_RANKS
from chunkbench.kernels.triton.planner import Descriptors, Shape, describe
from chunkbench.kernels.triton.tuning import VARIABLE, UnusableTable, read, tuning_for, write
from tests.kernels.pieces import planned, prompts

H100 = Shape(
    kv_heads=32, group=1, chunk_size=64, multiprocessors=132, blocks=3, narrow_blocks=5, narrow=16, lanes=64,
    head_tokens=2.0,
)  # fmt: skip


def chunks_read(work: Descriptors) -> dict[int, Counter[int]]:
    """How often each row reads each chunk, in items and in its tail."""
    counts: dict[int, Counter[int]] = {row: Counter() for row in range(len(work.rows))}
    for first, count, position, positions, *_ in work.items.tolist():
        for row in work.order[position : position + positions].tolist():
            counts[row].update(work.chunks[first : first + count].tolist())
    for row, (first, count, *_) in enumerate(work.rows.tolist()):
        counts[row].update(work.chunks[first : first + count].tolist())
    return counts


def check_partials(work: Descriptors, tail_rows: dict[int, int]) -> None:
    """Every partial result has one writer and one reader, of the same row. Every output has one writer."""
    written: dict[int, int] = {}
    direct: Counter[int] = Counter()
    for first, count, position, positions, tail, _, slot, *_ in work.items.tolist():
        rows = work.order[position : position + positions].tolist()
        if slot < 0:
            direct.update(rows)
        for index, row in enumerate(rows if slot >= 0 else []):
            assert slot + index not in written
            written[slot + index] = row
        ends = work.chunks[first + count - 1]
        assert tail == (rows[0] if positions == 1 and tail_rows.get(rows[0]) == ends else -1)
    read = {
        int(slot): row
        for row, (*_, first, folds) in enumerate(work.rows.tolist())
        for slot in work.folds[first : first + folds]
    }
    assert read == written
    for row, (_, tail, *_, folds) in enumerate(work.rows.tolist()):
        assert direct[row] == (0 if folds or tail else 1)


@settings(max_examples=150, deadline=None)
@given(
    drawn=prompts(),
    kv_heads=st.sampled_from([1, 4, 32]),
    group=st.sampled_from([1, 3, 16, 24]),
    multiprocessors=st.integers(1, 140),
    shares=st.booleans(),
)
def test_every_row_reads_each_of_its_chunks_once(
    drawn: list[list[int]], kv_heads: int, group: int, multiprocessors: int, shares: bool
) -> None:
    plan, paths = planned(drawn, 16)
    shape = H100._replace(kv_heads=kv_heads, group=group, chunk_size=16, multiprocessors=multiprocessors)
    merged = two_phase(plan, group, shape.costs) if shares else flat(plan, group)
    work = describe(items_of_forest(plan, merged), len(drawn), shape)
    assert chunks_read(work) == {row: Counter(path) for row, path in enumerate(paths)}
    private = Counter(chunk for path in paths for chunk in path)
    ends = {row: path[-1] for row, path in enumerate(paths) if private[path[-1]] == 1 or not shares}
    check_partials(work, ends)
    assert work.widest() <= shape.lanes // group


def test_the_merge_takes_short_tails() -> None:
    """In Table 3 each row has one own token after the shared prompt: an item for it would cost more than it saves."""
    common = list(range(1024))
    plan, _ = planned([[*common, 5000 + row] for row in range(32)], 64)
    work = describe(items_of_forest(plan, two_phase(plan, 1, H100.costs)), 32, H100)
    assert (work.rows["chunk_count"] == 1).all()
    assert (work.items["row_count"] == 32).all()


@pytest.mark.parametrize("multiprocessors", [108, 132])
@pytest.mark.parametrize("n_p", [1024, 2048, 4096])
@pytest.mark.parametrize("share", [0, 0.5, 0.75, 1])
def test_balance_for_table_3(n_p: int, share: float, multiprocessors: int) -> None:
    """32 sequences, 32 heads: the last multiprocessor ends at most 10% later than with evenly distributed reads."""
    n_s = int(n_p * share)
    drawn = [[*range(n_s), *range(10_000 * (row + 1), 10_000 * (row + 1) + n_p - n_s)] for row in range(32)]
    plan, _ = planned(drawn, 64)
    a100 = {"blocks": 2, "narrow_blocks": 4}
    shape = H100._replace(multiprocessors=multiprocessors, **(a100 if multiprocessors == 108 else {}))
    blocks = shape.blocks if n_s else shape.narrow_blocks
    work = describe(items_of_forest(plan, two_phase(plan, 1, shape.costs)), 32, shape)
    tokens = work.items["chunk_count"] * 64.0
    total = float(tokens.sum() + work.rows["chunk_count"].sum() * 64) * shape.kv_heads
    assert total == (n_s + 32 * (n_p - n_s)) * shape.kv_heads
    assert makespan(np.repeat(tokens, shape.kv_heads), multiprocessors, blocks) <= 1.1 * total / multiprocessors


def makespan(costs: np.ndarray, multiprocessors: int, blocks: int) -> float:
    """Time when the last program ends. Programs start in this order, each as soon as a block is free.

    All running blocks share the bandwidth evenly, `multiprocessors` tokens per unit of time. A multiprocessor cannot
    draw more than twice its share. If many blocks are free at once, one multiprocessor takes as many programs as it
    can, which is the worst order.
    """
    waiting = list(costs[::-1])
    left = np.zeros((multiprocessors, blocks))
    for place in np.ndindex(blocks, multiprocessors):  # the first wave goes round all multiprocessors
        if waiting:
            left[place[::-1]] = waiting.pop()
    now = 0.0
    while (running := left > 0).any():
        each = multiprocessors / running.sum()
        rate = np.minimum(each, 2 / np.maximum(1, running.sum(1)))[:, None]
        step = (left[running] / np.broadcast_to(rate, left.shape)[running]).min()
        left = np.where(running, left - rate * step, 0.0)
        left[left < 1e-6] = 0.0
        now += step
        for place in np.argwhere(left == 0.0):
            if waiting:
                left[tuple(place)] = waiting.pop()
    return now


def test_paged_tables_are_split_over_keys() -> None:
    """With two long sequences, each of the 132 multiprocessors gets something to read."""
    chunks = np.arange(2 * 512, dtype=np.int64)
    items = items_of_tables(chunks, np.array([512, 512], np.int64), np.arange(2))
    work = describe(items, 2, H100._replace(kv_heads=1))
    assert len(work.items) >= 132
    assert chunks_read(work) == {0: Counter(range(512)), 1: Counter(range(512, 1024))}


def test_every_generation_has_every_head_dimension_and_a_newer_gpu_uses_the_nearest_older_row() -> None:
    table = read()
    assert {"sm_80", "sm_86", "sm_90", "sm_120"} <= set(table)
    assert all(set(rows) == set(KV_RANKS) for rows in table.values())
    for capability, head_dim, generation in ((90, 128, "sm_90"), (89, 128, "sm_86"), (100, 64, "sm_90")):
        assert tuning_for(capability, head_dim) == table[generation][head_dim]
    with pytest.raises(UnusableTable, match=r"no row for compute capability 7\.5"):
        tuning_for(75, 128)


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    row = read()["sm_90"][128]._replace(tile=16)
    for table in (read(), {"sm_90": {128: row}}):
        write(table, path)
        assert read(path) == table


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"sm_90": {"128": {"tile": 32}}}), '{"sm_90": {"x": {}}}'])
def test_an_invalid_table_error_names_its_path_and_a_remedy(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.json"
    with pytest.raises(UnusableTable, match=r"table\.json"):
        read(path)  # not there
    path.write_text(text)
    monkeypatch.setenv(VARIABLE, str(path))
    with pytest.raises(UnusableTable, match=r"table\.json.*chunkbench tune"):
        tuning_for(90, 128)


def test_the_search_takes_the_best_tiles_and_then_the_best_merge() -> None:
    """Functions take the place of a GPU."""
    announced: list[Trial] = []

    def fit(candidates: Sequence[Tuning]) -> list[Tuning | str]:
        fitted = [candidate._replace(blocks=3, narrow_blocks=5) for candidate in candidates]
        return ["spills registers" if candidate.narrow_tile == 128 else candidate for candidate in fitted]

    def measure(candidate: Tuning) -> tuple[float, ...] | str:
        if candidate.stages == 7:
            return "wrong: max_error 1.0"
        slow = (candidate.tile != 64) + (candidate.stages != 5) + (candidate.narrow_stages != 3)
        return (10.0 + slow, 20.0 + (candidate.fold != 4) + (candidate.merge_tile != 32) + (candidate.merge_warps != 1))

    tuning = search(fit, measure, announced.append)
    assert tuning == Tuning(64, 4, 64, 5, 64, 3, 3, 5, merge_tile=32, merge_warps=1, fold=4)
    assert len(announced) == len(tiles()) + len(merges(tuning))
    assert {trial.reason for trial in announced if not trial.times_us} == {"spills registers", "wrong: max_error 1.0"}
    with pytest.raises(RuntimeError, match="no candidate"):
        best([Trial(tiles()[0], (), "spills registers")])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_the_command_says_so() -> None:
    ran = CliRunner().invoke(command, ["--head-dim", "128"])
    assert ran.exit_code == 2
    assert "PyTorch sees no NVIDIA GPU here" in ran.output


_BUILD = """
import json, sys, torch
from chunkbench.kernels.triton.compile import build
from chunkbench.kernels.triton.constants import Sizes
from chunkbench.kernels.triton.tuning import read
kernels = []
for generation, rows in read().items():
    number = int(generation.removeprefix("sm_"))
    for head_dim, tuning in rows.items():
        shapes = [(32, 32, 64, {}), (32, 8, 64, {}), (32, 1, 64, {})]
        if head_dim == 128:
            shapes += [(heads, kv_heads, chunk, {}) for heads, kv_heads, chunk in
                       ((32, 4, 64), (64, 1, 64), (32, 32, 16), (32, 32, 128))]
            shapes += [(32, kv_heads, 64, {"kv_dtype": form})
                       for form in ("int8", "uint8", "fp8") for kv_heads in (32, 8)]
            shapes += [(32, kv_heads, 64, {"drafts": "trees"}) for kv_heads in (32, 8)]
            shapes += [(16, 16, 64, {"rope": 64}), (28, 4, 64, {"drafts": "chains", "compensated": True})]
        if head_dim == 512:
            shapes = [(heads, 1, 64, {"rope": 64, "latent": True}) for heads in (16, 128)]
        if sys.argv[1] == "few":
            shapes = {128: shapes[:1], 512: shapes[:1] if number == 90 else []}.get(head_dim, [])
        for heads, kv_heads, chunk, more in shapes:
            dtype = torch.bfloat16 if kv_heads == 8 or "rope" in more else torch.float16
            plain, means = not more, more.pop("compensated", False)
            special, drafts = " ".join(more), more.pop("drafts", "none")
            sizes = Sizes(heads, kv_heads, head_dim, chunk, dtype, **more)
            for built in build(number, sizes, tuning, drafts, means):
                case = {"generation": number, "head_dim": head_dim, "heads": heads, "kv_heads": kv_heads}
                case |= {"chunk": chunk, "plain": plain, "special": special}
                assumed = tuning.narrow_blocks if built.kernel.endswith("narrow") else tuning.blocks
                fit = {"blocks": built.blocks(number), "assumed": assumed}
                kernels.append(case | built._asdict() | fit)
print(json.dumps(kernels))
"""


@pytest.fixture(scope="module", params=["few", pytest.param("all", marks=pytest.mark.slow)])
def built(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """Compiles in another process, because this process may use Triton's interpreter. A shape takes three seconds."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, "-c", _BUILD, request.param], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    kernels: list[dict[str, Any]] = json.loads(ran.stdout)
    return kernels


@pytest.mark.timeout(600)
def test_kernels_compile_for_all_generations(built: list[dict[str, Any]]) -> None:
    assert {kernel["generation"] for kernel in built} >= {80, 86, 90, 120}
    assert {kernel["head_dim"] for kernel in built} in ({128, 512}, {64, 128, 256, 512})


def most_spilled(kernel: dict[str, Any]) -> int:
    """Bytes that may be spilled outside the loop: a word or two if 32 heads share a KV head, or if K and V have 8 bits;
    some on sm_120 with chunks of 16 tokens or chains of drafts."""
    if kernel["generation"] == 120 and (kernel["chunk"] == 16 or kernel["heads"] == 28):
        return 24
    return 8 if kernel["kv_heads"] < 4 or kernel["special"] == "kv_dtype" else 0


def test_nothing_is_spilled(built: list[dict[str, Any]]) -> None:
    spilled = [kernel for kernel in built if kernel["stack_bytes"] > most_spilled(kernel)]
    assert [" ".join(map(str, kernel.values())) for kernel in spilled] == []


def of_plain_numbers(built: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The table of tuning was measured for K and V in the dtype of q, without drafts and latents."""
    return [kernel for kernel in built if kernel["kernel"].startswith("partial") and kernel["plain"]]


def test_as_many_blocks_fit_as_the_planner_assumes(built: list[dict[str, Any]]) -> None:
    partial = of_plain_numbers(built)
    equal_heads = [kernel for kernel in partial if kernel["kv_heads"] == 32 and kernel["chunk"] == 64]
    assert {kernel["kernel"] for kernel in equal_heads} == {"partial_results wide", "partial_results narrow"}
    assert [kernel for kernel in equal_heads if kernel["blocks"] != kernel["assumed"]] == []
    # Another shape may need a little more, so that one block less fits. Wide groups also fill the small tile.
    usual = [kernel for kernel in partial if kernel["kv_heads"] >= 4]
    assert [kernel for kernel in usual if kernel["blocks"] < kernel["assumed"] - 1] == []


def test_keys_and_values_are_loaded_ahead(built: list[dict[str, Any]]) -> None:
    """A block has several tiles of K and V in flight, or several blocks of a multiprocessor have one each."""
    partial = of_plain_numbers(built)
    assert [kernel for kernel in partial if not kernel["asynchronous_loads"]] == []
    assert [kernel for kernel in partial if kernel["ahead"] < 2 and kernel["blocks"] < 3] == []
