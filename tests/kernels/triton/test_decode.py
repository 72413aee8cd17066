"""The Triton kernels against float64: forests, splits, both merges, and replayed launches while sequences change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from chunkbench.kernels.triton import decode as decode_module
from chunkbench.kernels.triton.decode import TppTriton
from chunkbench.kernels.triton.store import TritonStore
from chunkbench.kernels.triton.tuning import Tuning
from chunkbench.kvcache import ChunkPool, PrefixTree
from tests.kernels.forests import Forest

TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 2e-2}
SMALL = Tuning(
    tile=32, wide=64, warps=4, stages=3, blocks=1, narrow_blocks=1, merge_tile=16, merge_warps=4, fold=2, in_place=False
)  # fmt: skip
SHARED_TREE = [
    [(1, 40), (2, 21), (3, 5)],
    [(1, 40), (2, 21), (4, 30)],
    [(1, 40), (5, 18)],
    [(1, 32)],
    [(6, 50)],
    [(7, 1)],
]
"""Two levels, a sequence that is a prefix of another one, a private sequence, and a sequence of one token."""


def forest_of(
    device: str, dtype: torch.dtype = torch.float16, kv_heads: int = 2, head_dim: int = 64, chunk_size: int = 16
) -> Forest:
    return Forest(TritonStore(chunk_size, kv_heads, head_dim, dtype, device), seed=3)


def check(forest: Forest, kernel: TppTriton) -> None:
    kernel.plan(forest.tree.plan())
    for layer in range(forest.store.layers):
        q = forest.normal(len(forest.contexts), kernel.sizes.heads, forest.store.head_dim)
        out = torch.full_like(q, float("nan"))
        kernel.decode(q, out, layer)
        assert forest.error(q, out, layer) < TOLERANCE[forest.store.dtype]


@pytest.mark.parametrize("in_place", [False, True], ids=["second launch", "in place"])
@pytest.mark.parametrize(
    ("dtype", "heads", "kv_heads", "head_dim", "chunk_size"),
    [
        (torch.float16, 2, 2, 64, 16),
        (torch.bfloat16, 6, 2, 64, 32),  # three query heads per KV head: tiles are not full
        (torch.float16, 2, 1, 128, 64),
        (torch.bfloat16, 1, 1, 256, 128),
        (torch.float16, 24, 1, 64, 16),  # more than the small tile holds
    ],
)
def test_a_forest(
    device: str, dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, chunk_size: int, in_place: bool
) -> None:
    forest = forest_of(device, dtype, kv_heads, head_dim, chunk_size)
    for path in SHARED_TREE:
        forest.join(path)
    forest.append()
    check(forest, TppTriton(forest.store, heads, tuning=SMALL._replace(in_place=in_place)))


@pytest.mark.parametrize("seed", [0, 5, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3, 4))])
def test_random_forests(device: str, seed: int) -> None:
    """Random depth, width and length, for machines of several sizes, while sequences come, grow and leave."""
    chance = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=chance))

    forest = forest_of(device)
    tuning = SMALL._replace(
        in_place=bool(seed % 2), tile=(16, 32)[draw(0, 1)], blocks=draw(1, 4), fold=(1, 2, 4)[seed % 3]
    )
    kernel = TppTriton(forest.store, heads=2 * draw(1, 3), tuning=tuning)
    prefixes = [[(100 + root, draw(1, 60))] for root in range(draw(1, 3))]
    for number in range(draw(2, 18)):
        prefix = prefixes[draw(0, len(prefixes) - 1)]
        path = [*prefix, (200 + number, draw(1, 40))]
        prefixes.append(path)
        forest.join(path)
    for _ in range(2):
        forest.append()
        check(forest, kernel)
        if len(forest.contexts) > 1:
            forest.leave(draw(0, len(forest.contexts) - 1))
    check(forest, kernel)


def test_several_layers_and_appends_to_some_rows(device: str) -> None:
    """The device counts a token once for all layers. After an append to some rows the store sends the ends of rows."""
    forest = Forest(TritonStore(16, 1, 64, torch.float16, device, layers=3), seed=3)
    for path in SHARED_TREE:
        forest.join(path)
    kernel = TppTriton(forest.store, heads=2, tuning=SMALL)
    check(forest, kernel)
    for counts in ({1: 1, 4: 1}, None, {3: 40, 0: 5}, None, None, {5: 16}):
        if counts is None:
            forest.append()
        else:
            forest.append_to(counts)
        check(forest, kernel)
    forest.leave(1)
    forest.append()
    check(forest, kernel)


@pytest.mark.parametrize("rows", [17, 70], ids=["one wide tile", "two wide tiles"])
def test_many_sequences_share_a_prefix(device: str, rows: int) -> None:
    forest = forest_of(device, kv_heads=1)
    for row in range(rows):
        forest.join([(1, 48), (2 + row, 1)])
    check(forest, TppTriton(forest.store, heads=1, tuning=SMALL))


def test_sequence_first_makes_an_item_for_every_row(device: str) -> None:
    forest = forest_of(device)
    for path in SHARED_TREE:
        forest.join(path)
    kernel = TppTriton(forest.store, heads=2, chunk_first=False, tuning=SMALL)
    check(forest, kernel)
    assert kernel.work_items >= len(SHARED_TREE)


def test_equal_sequences_share_all_keys(device: str) -> None:
    forest = forest_of(device)
    for _ in range(3):
        forest.join([(1, 32)])
    check(forest, TppTriton(forest.store, heads=2, tuning=SMALL))


def test_many_slabs(device: str) -> None:
    forest = forest_of(device)
    for path in SHARED_TREE:
        forest.store.grow(forest.store.capacity + 5)  # a slab for every sequence
        forest.join(path)
    assert len(forest.store.slabs) > 3
    check(forest, TppTriton(forest.store, heads=2, tuning=SMALL))


def test_strided_queries_and_outputs(device: str) -> None:
    forest = forest_of(device)
    for path in SHARED_TREE:
        forest.join(path)
    kernel = TppTriton(forest.store, heads=2, tuning=SMALL)
    kernel.plan(forest.tree.plan())
    q = forest.normal(2, len(SHARED_TREE), 64).transpose(0, 1)
    out = torch.full((len(SHARED_TREE), 2, 128), float("nan"), dtype=q.dtype, device=device)[..., ::2]
    kernel.decode(q, out)
    assert forest.error(q, out) < TOLERANCE[torch.float16]


def test_lengths_advance_on_the_device(device: str) -> None:
    """Inside chunks the store sends nothing: the launch that writes a token counts it."""
    forest = forest_of(device)
    for path in SHARED_TREE:
        forest.join(path)
    forest.append()
    sent = 0
    send = forest.store._staging.send

    def count_and_send() -> None:
        nonlocal sent
        sent += 1
        send()

    forest.store._staging.send = count_and_send  # type: ignore[method-assign]
    kernel = TppTriton(forest.store, heads=2, tuning=SMALL)
    check(forest, kernel)
    for _ in range(3):
        forest.append()
    assert sent == 0
    check(forest, kernel)


class Launches:
    """Records the launches of `decode` and replays them with the same arguments, as a CUDA graph does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.recorded: list[Callable[[], Any]] = []
        for name in ("partial_results", "merge_rows"):
            monkeypatch.setattr(decode_module, name, self._recording(getattr(decode_module, name)))

    def _recording(self, kernel: Any) -> Any:
        recorded = self.recorded

        class Recording:
            def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
                def launch(**arguments: Any) -> None:
                    recorded.append(lambda: kernel[grid](**arguments))
                    recorded[-1]()

                return launch

        return Recording()

    def replay(self) -> None:
        for launch in self.recorded:
            launch()


@pytest.mark.parametrize("in_place", [False, True], ids=["second launch", "in place"])
def test_a_captured_launch_follows_the_forest(device: str, monkeypatch: pytest.MonkeyPatch, in_place: bool) -> None:
    """Sequences grow beyond their chunks, join and leave, while the captured launch stays the same."""
    forest = forest_of(device, kv_heads=1)
    forest.store.grow(64)
    kernel = TppTriton(forest.store, heads=2, tuning=SMALL._replace(in_place=in_place))
    kernel.reserve(rows=8, chunks=64, items=16)
    for path in SHARED_TREE[:4]:
        forest.join(path)
    launches = Launches(monkeypatch)
    q = forest.normal(8, 2, 64)
    out = torch.full_like(q, float("nan"))
    kernel.plan(forest.tree.plan())
    kernel.decode(q, out)
    captured = kernel.generation
    monkeypatch.undo()

    def replayed() -> float:
        kernel.plan(forest.tree.plan())
        q.copy_(forest.normal(*q.shape))
        out.fill_(float("nan"))
        launches.replay()
        assert torch.isnan(out[len(forest.contexts) :]).all()  # rows beyond the plan are not written
        return forest.error(q, out)

    for change in (forest.append, lambda: forest.join(SHARED_TREE[4]), lambda: forest.leave(1)):
        change()
        assert replayed() < TOLERANCE[torch.float16]
    for _ in range(17):
        forest.append()
    assert replayed() < TOLERANCE[torch.float16]
    assert kernel.generation == captured


def test_larger_buffers_change_the_generation(device: str) -> None:
    forest = forest_of(device)
    forest.join([(1, 20)])
    kernel = TppTriton(forest.store, heads=2, tuning=SMALL)
    check(forest, kernel)
    before = kernel.generation
    for row in range(40):
        forest.join([(1, 20), (2 + row, 3)])
    kernel.plan(forest.tree.plan())
    assert kernel.generation > before


@pytest.mark.parametrize("share", [False, True], ids=["private blocks", "shared blocks"])
def test_paged_attention(device: str, share: bool) -> None:
    forest = forest_of(device)
    forest.tree = PrefixTree(16, ChunkPool(make_room=forest.store.grow), share)
    kernel = TppTriton(forest.store, heads=4, chunk_first=False, tuning=SMALL)
    for path in SHARED_TREE[:5]:
        forest.join(path)
    for _ in range(2):
        forest.append()
        check(forest, kernel)


def test_new_buffers_of_the_store_change_the_generation(device: str) -> None:
    """Launches read the store's buffers, too, so new buffers invalidate a captured launch."""
    forest = forest_of(device, kv_heads=1)
    for row in range(32):
        forest.join([(1, 16), (2 + row, 3)])
    kernel = TppTriton(forest.store, heads=1, tuning=SMALL)
    kernel.plan(forest.tree.plan())
    kernel.reserve(rows=40, chunks=256, items=200)
    captured, tokens = kernel.generation, forest.store.tokens
    forest.join([(1, 16), (50, 3)])
    kernel.plan(forest.tree.plan())
    assert forest.store.tokens is tokens
    assert kernel.generation == captured
    forest.store.reserve_rows(100)  # as another kernel over the same store can do
    kernel.plan(forest.tree.plan())
    assert kernel.generation > captured
    check(forest, kernel)


def test_running_out_of_memory_changes_nothing(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forest = forest_of(device)
    for path in SHARED_TREE[:3]:
        forest.join(path)
    kernel = TppTriton(forest.store, heads=2, tuning=SMALL)
    check(forest, kernel)
    for row in range(40):
        forest.join([(1, 40), (30 + row, 2)])
    with monkeypatch.context() as patched:
        patched.setattr("chunkbench.kernels.triton.buffers.torch.zeros", lambda *_, **__: out_of_memory())
        with pytest.raises(torch.OutOfMemoryError):
            kernel.plan(forest.tree.plan())
    check(forest, kernel)


def out_of_memory() -> None:
    raise torch.OutOfMemoryError("no memory left")


def test_rows_beyond_the_plan_stay_unchanged(device: str) -> None:
    forest = forest_of(device)
    for path in SHARED_TREE[:3]:
        forest.join(path)
    kernel = TppTriton(forest.store, heads=2, tuning=SMALL)
    kernel.plan(forest.tree.plan())
    for layout in (torch.full((5, 2, 64), 7.0), torch.full((5, 2, 128), 7.0)[..., ::2]):
        out = layout.half().to(device)
        kernel.decode(forest.normal(5, 2, 64), out)
        assert (out[3:] == 7.0).all()
        assert (out[:3] != 7.0).any()


def places_read_by(kernel: TppTriton, rows: int) -> list[list[int]]:
    """Places of the chunks that each row reads according to the descriptors, sorted."""
    host = kernel._buffers.host
    places_of_row: list[list[int]] = [[] for _ in range(rows)]
    for first, count, position, positions, *_ in host["items"][: kernel.work_items].tolist():
        for row in host["order"][position : position + positions].tolist():
            places_of_row[row] += host["key_places"][first : first + count].tolist()
    for row, (_, _, first, count) in enumerate(host["rows"][:rows].tolist()):
        places_of_row[row] += host["key_places"][first : first + count].tolist()
    return [sorted(places) for places in places_of_row]


@pytest.mark.parametrize(
    ("in_place", "chunk_first"), [(False, True), (True, True), (False, False)], ids=["tails", "no tails", "paged"]
)
def test_an_extended_plan_reads_the_same_chunks_as_a_new_plan(device: str, in_place: bool, chunk_first: bool) -> None:
    """Sequences need new chunks at different steps, until and after the plan has no room to grow."""
    forest = forest_of(device, kv_heads=1)
    forest.store.grow(500)
    kernel = TppTriton(forest.store, heads=1, chunk_first=chunk_first, tuning=SMALL._replace(in_place=in_place))
    for row, path in enumerate([*SHARED_TREE, [(9, 60)], [(9, 60), (10, 3)]]):
        forest.join([*path, (20 + row, 1 + 2 * row)])
    kernel.plan(forest.tree.plan())
    rebuilt, grown, make = 0, 0, kernel.make

    def count_and_make(*arguments: Any) -> None:
        nonlocal rebuilt
        rebuilt += 1
        make(*arguments)

    kernel.make = count_and_make  # type: ignore[method-assign]
    for _ in range(12 * 16):
        forest.tree.append([1] * len(forest.contexts))
        rebuilds = forest.tree.plan_rebuilds
        plan = forest.tree.plan()
        grown += forest.tree.plan_rebuilds - rebuilds
        kernel.plan(plan)
        paths = [np.array(forest.tree.path(sequence)) for sequence in forest.tree.sequences]
        assert places_read_by(kernel, len(paths)) == [sorted(forest.store.places(path)[0].tolist()) for path in paths]
    assert 0 < rebuilt < grown / 4


@pytest.mark.gpu
@pytest.mark.parametrize("in_place", [False, True], ids=["second launch", "in place"])
def test_a_cuda_graph_follows_the_forest(in_place: bool) -> None:
    forest = forest_of("cuda", kv_heads=1)
    forest.store.grow(64)
    kernel = TppTriton(forest.store, heads=2, tuning=SMALL._replace(in_place=in_place))
    kernel.reserve(rows=8, chunks=64)
    for path in SHARED_TREE[:4]:
        forest.join(path)
    kernel.plan(forest.tree.plan())
    q = forest.normal(8, 2, 64)
    out = torch.empty_like(q)
    kernel.decode(q, out)
    captured, graph = kernel.generation, torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel.decode(q, out)
    for change in (lambda: None, lambda: forest.join(SHARED_TREE[4]), lambda: forest.leave(1), lambda: None):
        change()
        for _ in range(20):
            forest.append()
            kernel.plan(forest.tree.plan())
            q.copy_(forest.normal(*q.shape))
            out.fill_(float("nan"))
            graph.replay()
            assert forest.error(q, out) < TOLERANCE[torch.float16]
    assert kernel.generation == captured


@pytest.mark.gpu
def test_merging_in_place_has_no_races() -> None:
    """Many blocks finish the same rows. In 200 repetitions the result equals that of the second launch."""
    forest = Forest(TritonStore(64, 8, 128, torch.float16, "cuda"), seed=3)
    for row in range(32):
        forest.join([(1, 64), (2, 64), (3, 64), (4, 64), (5 + row % 4, 64), (10 + row, 60)])
    kernels = []
    for in_place in (False, True):
        kernel = TppTriton(forest.store, heads=32, tuning=SMALL._replace(in_place=in_place, blocks=8, narrow_blocks=8))
        kernel.plan(forest.tree.plan())
        kernels.append(kernel)
    q = forest.normal(32, 32, 128)
    expected, out = torch.empty_like(q), torch.empty_like(q)
    kernels[0].decode(q, expected)
    assert forest.error(q, expected) < TOLERANCE[torch.float16]
    for _ in range(200):
        out.fill_(float("nan"))
        kernels[1].decode(q, out)
        assert (out.double() - expected.double()).abs().max() < 2e-3
    assert not kernels[1]._buffers.device["counters"].any()
