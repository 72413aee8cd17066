"""The Triton kernels against float64: forests, splits, both merges, and replayed launches while sequences change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from chunkbench.attention import ChunkAttention, LayeredChunkAttention
from chunkbench.kernels.planners import Planner, cascade, flat, node_wise, pack, tree_fused
from chunkbench.kernels.query_rows import QueryRows
from chunkbench.kernels.triton import decode as decode_module
from chunkbench.kernels.triton.decode import TppTriton
from chunkbench.kernels.triton.store import TritonStore
from chunkbench.kernels.triton.tuning import Tuning
from chunkbench.kv_dtype import KvDtype
from tests.attention.contexts import Contexts

SMALL = Tuning(
    wide=64, warps=4, tile=32, stages=3, narrow_tile=32, narrow_stages=3, blocks=1, narrow_blocks=1,
    merge_tile=16, merge_warps=4, fold=2,
)  # fmt: skip
SHARED_TREE = [
    [*range(40), *range(200, 221), *range(300, 305)],
    [*range(40), *range(200, 221), *range(400, 430)],
    [*range(40), *range(500, 518)],
    [*range(32)],
    [*range(600, 650)],
    [700],
]
"""Two levels, a sequence that is a prefix of another one, a private sequence, and a sequence of one token."""


class Forest(Contexts):
    """Contexts in a store of the GPU kernels, and a kernel of its own over it."""

    tolerance: ClassVar = {torch.float16: 4e-3, torch.bfloat16: 2e-2}

    def __init__(
        self,
        device: str,
        heads: int = 2,
        kv_heads: int = 2,
        head_dim: int = 64,
        chunk_size: int = 16,
        dtype: torch.dtype = torch.float16,
        layers: int = 1,
        share: bool = True,
        paths: Sequence[list[int]] = (),
        planner: Planner | None = None,
        tuning: Tuning = SMALL,
        kv_dtype: KvDtype = "same",
    ) -> None:
        options: dict[str, Any] = {"dtype": dtype, "device": device, "kernel": "triton", "share": share}
        options["kv_dtype"] = kv_dtype
        super().__init__(LayeredChunkAttention(layers, heads, head_dim, kv_heads, chunk_size, **options))
        assert isinstance(self.attention._store, TritonStore)
        self.store, self.tree = self.attention._store, self.attention._tree
        self.kernel = TppTriton(self.store, heads, planner, tuning)
        for path in paths:
            self.add(path)

    def leave(self, row: int) -> None:
        self.remove(self.attention.sequences[row])

    def plan(self) -> None:
        self.kernel.plan(self.tree.plan())

    def outputs(self, q: torch.Tensor, layer: int, rows: QueryRows | None = None) -> dict[str, torch.Tensor]:
        self.kernel.plan(self.tree.plan(), query_rows=rows)
        out = torch.full_like(q, float("nan"))
        self.kernel.decode(q, out, layer)
        return {"": out}

    def is_close(self, q: torch.Tensor, out: torch.Tensor) -> bool:
        """Whether the first rows of out are the attention of q; further rows do not matter."""
        expected = self.expected(q)
        error = (out[: len(expected)].double() - expected).abs().max() / expected.abs().max()
        return bool(error < self.tolerance[q.dtype])


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
def test_a_forest(device: str, dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, chunk_size: int) -> None:
    forest = Forest(device, heads, kv_heads, head_dim, chunk_size, dtype, paths=SHARED_TREE)
    forest.step()
    forest.check()


@pytest.mark.parametrize("kv_dtype", ["int8", "uint8", "fp8"])
def test_a_forest_in_8_bits(device: str, kv_dtype: KvDtype) -> None:
    forest = Forest(device, 6, 2, chunk_size=32, dtype=torch.bfloat16, paths=SHARED_TREE, kv_dtype=kv_dtype)
    for _ in range(2):
        forest.step()
        forest.check()


class Drafts(NamedTuple):
    heads: int
    kv_heads: int
    counts: list[int]
    parents: tuple[int, ...] | None = None
    planner: Planner | None = None


@pytest.mark.parametrize(
    "drafts",
    [
        Drafts(6, 2, [4, 1, 2, 3, 5, 1]),
        Drafts(6, 2, [7] * 5, (-1, 0, 0, 1, 1, 2, 5)),
        Drafts(6, 1, [40] * 2, (-1, *range(20), *range(19))),  # lie in several chunks; more rows than lanes
        Drafts(24, 1, [3, 3, 3, 3, 3, 1], None, node_wise),  # two rows fill the lanes, so the third is a tail
        Drafts(24, 1, [3] * 5, (-1, -1, 0), node_wise),
        Drafts(2, 2, [5] * 5, None, flat),
    ],
    ids=["chains", "tree", "long tree", "wide groups", "tree, wide groups", "paged"],
)
def test_query_rows_read_what_they_should(device: str, drafts: Drafts) -> None:
    """Drafts begin in chunks that others share."""
    heads, kv_heads, counts, parents, planner = drafts
    forest = Forest(device, heads, kv_heads, planner=planner)
    for path, count in zip([*(path for path in SHARED_TREE if len(path) > 1), [700]], counts, strict=False):
        forest.add(path if len(path) >= count else [*path, *range(900, 950)])
    rows = QueryRows(np.array(counts), parents)
    forest.check()
    for _ in range(3):
        forest.step()
        forest.check_draft(rows)
    forest.check()


def test_a_part_of_a_shared_run_with_one_row_is_no_tail(device: str) -> None:
    """Two of nine rows fill the lanes, so the last one has a part of the shared run alone; its own run has two rows."""
    forest = Forest(device, 24, 1, paths=[[*range(64), *range(100 * row, 100 * row + 10)] for row in range(1, 9)])
    forest.check_draft(QueryRows(np.array([1] * 7 + [2])))


def test_rows_of_drafts_come_and_go(device: str) -> None:
    """The launches of one kernel stay right for plain steps after trees, and for other kernels over the store."""
    forest = Forest(device, paths=SHARED_TREE[:3])
    other = TppTriton(forest.store, 2, tuning=SMALL)
    for rows in (QueryRows.alike(3, 3), QueryRows.alike(3, 3, (-1, -1, 0)), QueryRows.alike(3, 2)):
        forest.step()
        forest.plan()
        other.plan(forest.tree.plan(), query_rows=rows)
        q = forest.normal(3, 2, 64)
        out = torch.full_like(q, float("nan"))
        forest.kernel.decode(q, out)  # not planned again
        assert forest.is_close(q, out)
        forest.check_draft(rows)
    forest.step()
    forest.check()
    for row in (2, 1, 0):
        forest.leave(row)
    forest.plan()


@pytest.mark.parametrize("seed", [0, 5, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3, 4))])
def test_random_forests(device: str, seed: int) -> None:
    """Random depth, width and length, for machines of several sizes, while sequences come, grow and leave."""
    chance = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=chance))

    tuning = SMALL._replace(
        narrow_tile=(32, 16)[seed % 2], tile=(16, 32)[draw(0, 1)], blocks=draw(1, 4), fold=(1, 2, 4)[seed % 3]
    )
    forest = Forest(device, heads=2 * draw(1, 3), tuning=tuning)
    prefixes = [list(range(100 * root, 100 * root + draw(1, 60))) for root in range(draw(1, 3))]
    for number in range(draw(2, 18)):
        prefix = prefixes[draw(0, len(prefixes) - 1)]
        prefixes.append([*prefix, *range(1000 + 100 * number, 1000 + 100 * number + draw(1, 40))])
        forest.add(prefixes[-1])
    for _ in range(2):
        forest.step()
        forest.check()
        if len(forest.tokens) > 1:
            forest.leave(draw(0, len(forest.tokens) - 1))
    forest.check()


def test_several_layers_and_appends_to_some_rows(device: str) -> None:
    """The device counts a token once for all layers. After an append to some rows the store sends the ends of rows."""
    forest = Forest(device, kv_heads=1, layers=2, paths=SHARED_TREE)
    forest.check()
    for counts in ({1: 1, 4: 1}, None, {3: 40, 0: 5}, None, {5: 16}):
        if counts is None:
            forest.step()
        else:
            forest.append_to(counts)
        forest.check()
    forest.leave(1)
    forest.step()
    forest.check()


@pytest.mark.parametrize("rows", [17, 70], ids=["one wide tile", "two wide tiles"])
def test_many_sequences_share_a_prefix(device: str, rows: int) -> None:
    Forest(device, heads=1, kv_heads=1, paths=[[*range(48), 100 + row] for row in range(rows)]).check()


def test_many_slabs(device: str) -> None:
    forest = Forest(device)
    for path in SHARED_TREE:
        forest.store.grow(forest.store.capacity + 5)  # a slab for every sequence
        forest.add(path)
    assert len(forest.store.slabs) > 3
    forest.check()


def test_strided_queries_and_outputs(device: str) -> None:
    forest = Forest(device, paths=SHARED_TREE)
    forest.plan()
    q = forest.normal(2, len(SHARED_TREE), 64).transpose(0, 1)
    out = torch.full((len(SHARED_TREE), 2, 128), float("nan"), dtype=q.dtype, device=device)[..., ::2]
    forest.kernel.decode(q, out)
    assert forest.is_close(q, out)


def test_lengths_advance_on_the_device(device: str) -> None:
    """Inside chunks the store sends nothing: the launch that writes a token counts it."""
    forest = Forest(device, paths=SHARED_TREE)
    forest.step()
    sent = 0
    send = forest.store._staging.send

    def count_and_send() -> None:
        nonlocal sent
        sent += 1
        send()

    forest.store._staging.send = count_and_send  # type: ignore[method-assign]
    forest.check()
    for _ in range(3):
        forest.step()
    assert sent == 0
    forest.check()


def new_cache(device: str, **options: object) -> ChunkAttention:
    arguments = {"dtype": torch.float16, "kv_heads": 1, "chunk_size": 16, "kernel": "triton"} | options
    return ChunkAttention(2, 64, device=device, **arguments)  # type: ignore[arg-type]


def test_add_append_fork_truncate_and_remove(device: str) -> None:
    contexts = Contexts(new_cache(device))
    contexts.attention.plan()
    assert contexts.attention.work_items == 0
    for tokens in ([*range(40)], [*range(33), *range(200, 220)], [*range(32)], [700]):
        contexts.add(tokens)
    contexts.check()
    for step in range(18):
        contexts.append([1000 + 10 * step + row for row in range(len(contexts.tokens))])
    contexts.check()
    first, second, third, _ = contexts.tokens
    contexts.fork(second)
    contexts.check()
    contexts.truncate(first, 37)
    contexts.remove(third)
    contexts.check()


@pytest.mark.parametrize("planner", [flat, cascade, node_wise, tree_fused, pack])
def test_the_plans_of_other_papers(device: str, planner: Planner) -> None:
    cache = new_cache(device)
    contexts = Contexts(cache)
    for tokens in SHARED_TREE:
        contexts.add(tokens)
    kernel = cache.with_planner(planner)
    for _ in range(2):
        contexts.step()
        kernel.plan(cache.forest)
        q = contexts.normal(len(SHARED_TREE), 2, 64)
        out = torch.full_like(q, float("nan"))
        kernel.decode(q, out)
        contexts.compare({planner.__name__: out}, contexts.expected(q), "")
    contexts.check()


def test_auto_chooses_triton_on_a_gpu_and_wrong_shapes_are_refused(device: str) -> None:
    assert new_cache(device, kernel="auto").kernel == ("triton" if device == "cuda" else "native")
    with pytest.raises(ValueError, match="float16 and bfloat16, not float32"):
        new_cache(device, dtype=torch.float32)
    with pytest.raises(ValueError, match="power of two from 16"):
        new_cache(device, chunk_size=48)
    with pytest.raises(ValueError, match="head dimensions of 64, 128 and 256, not 80"):
        ChunkAttention(2, 80, dtype=torch.float16, device=device, kernel="triton")
    with pytest.raises(ValueError, match="at most 64 query heads per KV head"):
        ChunkAttention(130, 64, kv_heads=1, dtype=torch.float16, device=device, kernel="triton")


def test_without_a_gpu_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="it runs on an NVIDIA GPU, not on cpu"):
        new_cache("cpu")


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


def test_a_captured_launch_follows_the_forest(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences grow beyond their chunks, join and leave, while the captured launch stays the same."""
    forest = Forest(device, kv_heads=1)
    forest.store.grow(64)
    forest.kernel.reserve(rows=8, chunks=64, items=16)
    for path in SHARED_TREE[:4]:
        forest.add(path)
    launches = Launches(monkeypatch)
    q = forest.normal(8, 2, 64)
    out = torch.full_like(q, float("nan"))
    forest.plan()
    forest.kernel.decode(q, out)
    captured = forest.kernel.generation
    monkeypatch.undo()

    def replayed() -> bool:
        forest.plan()
        q.copy_(forest.normal(*q.shape))
        out.fill_(float("nan"))
        launches.replay()
        assert torch.isnan(out[len(forest.tokens) :]).all()  # rows beyond the plan are not written
        return forest.is_close(q, out)

    for change in (forest.step, lambda: forest.add(SHARED_TREE[4]), lambda: forest.leave(1)):
        change()
        assert replayed()
    for _ in range(17):
        forest.step()
    assert replayed()
    assert forest.kernel.generation == captured


def test_larger_buffers_change_the_generation(device: str) -> None:
    forest = Forest(device, paths=[list(range(20))])
    forest.check()
    before = forest.kernel.generation
    for row in range(40):
        forest.add([*range(20), *range(100 + 3 * row, 103 + 3 * row)])
    forest.plan()
    assert forest.kernel.generation > before


@pytest.mark.parametrize("share", [False, True], ids=["private blocks", "shared blocks"])
def test_paged_attention(device: str, share: bool) -> None:
    forest = Forest(device, heads=4, share=share, paths=SHARED_TREE[:5], planner=flat)
    for _ in range(2):
        forest.step()
        forest.check()
    assert forest.kernel.work_items >= 5


def test_new_buffers_of_the_store_change_the_generation(device: str) -> None:
    """Launches read the store's buffers, too, so new buffers invalidate a captured launch."""
    paths = [[*range(16), *range(100 + 3 * row, 103 + 3 * row)] for row in range(33)]
    forest = Forest(device, heads=1, kv_heads=1, paths=paths[:32])
    forest.plan()
    forest.kernel.reserve(rows=40, chunks=256, items=200)
    captured, tokens = forest.kernel.generation, forest.store.tokens
    forest.add(paths[32])
    forest.plan()
    assert forest.store.tokens is tokens
    assert forest.kernel.generation == captured
    forest.store.reserve_rows(100)  # as another kernel over the same store can do
    forest.plan()
    assert forest.kernel.generation > captured
    forest.check()


def test_running_out_of_memory_changes_nothing(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forest = Forest(device, paths=SHARED_TREE[:3])
    forest.check()
    for row in range(40):
        forest.add([*range(40), *range(800 + 2 * row, 802 + 2 * row)])
    with monkeypatch.context() as patched:
        patched.setattr("chunkbench.kernels.triton.buffers.torch.zeros", lambda *_, **__: out_of_memory())
        with pytest.raises(torch.OutOfMemoryError):
            forest.plan()
    forest.check()


def out_of_memory() -> None:
    raise torch.OutOfMemoryError("no memory left")


def places_read_by(kernel: TppTriton, rows: int) -> list[list[int]]:
    """Places of the chunks that each row reads according to the descriptors, sorted."""
    host = kernel._buffers.host
    places_of_row: list[list[int]] = [[] for _ in range(rows)]
    for first, count, position, positions, *_ in host["items"][: kernel.work_items].tolist():
        for row in host["order"][position : position + positions].tolist():
            places_of_row[row] += host["key_places"][first : first + count].tolist()
    for row, (first, count, *_) in enumerate(host["rows"][:rows].tolist()):
        places_of_row[row] += host["key_places"][first : first + count].tolist()
    return [sorted(places) for places in places_of_row]


@pytest.mark.parametrize("planner", [node_wise, flat], ids=["tails", "paged"])
def test_an_extended_plan_reads_the_same_chunks_as_a_new_plan(device: str, planner: Planner) -> None:
    """Sequences need new chunks at different steps, until and after the plan has no room to grow."""
    forest = Forest(device, heads=1, kv_heads=1, planner=planner)
    kernel = forest.kernel
    forest.store.grow(500)
    for row, path in enumerate([*SHARED_TREE, [*range(800, 860)], [*range(800, 863)]]):
        forest.add([*path, *range(1000 + 100 * row, 1001 + 102 * row)])
    forest.plan()
    rebuilt, grown, make = 0, 0, kernel.make

    def count_and_make(*arguments: Any) -> None:
        nonlocal rebuilt
        rebuilt += 1
        make(*arguments)

    kernel.make = count_and_make  # type: ignore[method-assign]
    for _ in range(12 * 16):
        forest.tree.append([1] * len(forest.tokens))
        rebuilds = forest.tree.plan_rebuilds
        plan = forest.tree.plan()
        grown += forest.tree.plan_rebuilds - rebuilds
        kernel.plan(plan)
        paths = [np.array(forest.tree.path(sequence)) for sequence in forest.tree.sequences]
        assert places_read_by(kernel, len(paths)) == [sorted(forest.store.places(path)[0].tolist()) for path in paths]
    assert 0 < rebuilt < grown / 4


@pytest.mark.gpu
def test_a_cuda_graph_follows_the_forest() -> None:
    forest = Forest("cuda", kv_heads=1)
    kernel = forest.kernel
    forest.store.grow(64)
    kernel.reserve(rows=8, chunks=64)
    for path in SHARED_TREE[:4]:
        forest.add(path)
    forest.plan()
    q = forest.normal(8, 2, 64)
    out = torch.empty_like(q)
    kernel.decode(q, out)
    captured, graph = kernel.generation, torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel.decode(q, out)
    for change in (lambda: None, lambda: forest.add(SHARED_TREE[4]), lambda: forest.leave(1), lambda: None):
        change()
        for _ in range(20):
            forest.step()
            forest.plan()
            q.copy_(forest.normal(*q.shape))
            out.fill_(float("nan"))
            graph.replay()
            assert forest.is_close(q, out)
    assert kernel.generation == captured


@pytest.mark.gpu
def test_launches_that_overlap_have_no_races() -> None:
    """The merge begins before all partial results are there. 200 repetitions give the same numbers."""
    groups = [[*range(256), *range(1000 + 64 * group, 1064 + 64 * group)] for group in range(4)]
    paths = [[*groups[row % 4], *range(2000 + 60 * row, 2060 + 60 * row)] for row in range(32)]
    forest = Forest("cuda", 32, 8, 128, 64, paths=paths, tuning=SMALL._replace(blocks=8, narrow_blocks=8))
    forest.kernel.plan(forest.tree.plan())
    q = forest.normal(32, 32, 128)
    expected, out = torch.empty_like(q), torch.empty_like(q)
    forest.kernel.decode(q, expected)
    assert forest.is_close(q, expected)
    for _ in range(200):
        forest.kernel._buffers.device["partial_out"].fill_(float("nan"))
        forest.kernel._buffers.device["partial_lse"].fill_(float("nan"))
        out.fill_(float("nan"))
        forest.kernel.decode(q, out)
        assert torch.equal(out, expected)
