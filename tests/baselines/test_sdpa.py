"""PyTorch's and xformers' attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend

from chunkbench.attention.tree import PrefixTree
from chunkbench.baselines import flex_attention, sdpa, xformers_
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.bench.workers.inputs import PooledInputs
from tests.baselines.checked import attend, bound, check, inputs_of, make_point, points, signature


@pytest.mark.parametrize("axes", [{}, {"kv_heads": 2}, {"n_p": (50, 90)}], ids=["equal", "grouped heads", "ragged"])
def test_the_adapters_call_computes_attention(axes: dict[str, Any]) -> None:
    inputs = inputs_of(**axes)
    check(sdpa.SdpaSession(inputs, SDPBackend.MATH), inputs)


def test_an_adapter_uses_its_own_backend_only() -> None:
    inputs = inputs_of(n_c=1)
    out = torch.empty(4, 4, 64)
    for adapter in (sdpa.SdpaEfficient, sdpa.Cudnn):
        session = adapter().prepare(inputs)
        if not torch.cuda.is_available():  # PyTorch has neither backend on a CPU, and must not use another one
            with pytest.raises(RuntimeError, match=r"No (available kernel|viable backend)"):
                session.decode(inputs.queries(1), out)


def test_points_that_a_backend_refuses_are_unsupported() -> None:
    efficient, cudnn = sdpa.SdpaEfficient(), sdpa.Cudnn()
    assert efficient.supports(make_point()).ok
    assert efficient.supports(make_point(n_p=(50, 90))).ok
    assert cudnn.supports(make_point(dtype="float16")).ok
    assert not cudnn.supports(make_point()).ok
    assert not cudnn.supports(make_point(dtype="float16", n_p=(50, 90))).ok


def named(name: str, *reasons: str) -> Any:
    return SimpleNamespace(NAME=name, not_supported_reasons=lambda inputs: list(reasons))


def forward(expected: Any) -> Callable[..., torch.Tensor]:
    """memory_efficient_attention_forward of q `[b, 1, h, d]` or `[b, 1, h_kv, group, d]`; K and V have q's heads."""

    def call(query: Any, key: Any, value: Any, *, op: Any) -> torch.Tensor:
        assert op is expected
        assert query.ndim == key.ndim
        assert query.shape[2:] == key.shape[2:] == value.shape[2:]
        rows = [attend(*(x[row].flatten(1, -2) for x in (query, key, value)))[0] for row in range(len(query))]
        return torch.stack(rows).reshape(query.shape)

    return call


@pytest.mark.parametrize(
    "axes", [{}, {"kv_heads": 2}, {"batch_size": 1}], ids=["equal", "grouped heads", "one sequence"]
)
def test_the_adapters_call_computes_attention_xformers(
    axes: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = named("triton_splitKF")
    monkeypatch.setattr(xformers_, "library", lambda: SimpleNamespace(forward=forward(chosen)))
    inputs = inputs_of(**axes)
    check(xformers_.XformersSession(inputs, chosen), inputs)


def test_the_call_matches_the_real_packages_signature(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = signature("xformers", "ops/fmha/__init__.py", "memory_efficient_attention_forward")
    checked = bound(real, forward(None))
    monkeypatch.setattr(xformers_, "library", lambda: SimpleNamespace(forward=checked))
    inputs = inputs_of(kv_heads=2)
    check(xformers_.XformersSession(inputs, None), inputs)


@pytest.mark.filterwarnings("ignore")
def test_the_real_package_has_the_preferred_operators() -> None:
    signature("xformers", "ops/fmha/__init__.py", "memory_efficient_attention_forward")  # skips without the package
    library = xformers_.library()
    q, k = torch.empty(1, 1, 2, 64, dtype=torch.float16), torch.empty(1, 8, 2, 64, dtype=torch.float16)
    assert xformers_.operator(library, q, k) is None  # all operators refuse CPU tensors
    names = [op.NAME for op in library.operators]
    assert all(any(name.startswith(start) for name in names) for start in ("triton_splitKF", "fa3F", "fa2F"))
    for op in library.operators:
        assert op.not_supported_reasons(library.inputs(q, k, k))


def test_operators_that_split_the_context_come_first() -> None:
    q, k = torch.empty(1, 1, 2, 64), torch.empty(1, 8, 2, 64)

    def chosen(*operators: Any) -> str | None:
        library = SimpleNamespace(operators=operators, inputs=lambda q, k, v: None)
        best = xformers_.operator(library, q, k)
        return None if best is None else str(best.NAME)

    cutlass, flash, split = named("cutlassF-pt"), named("fa2F@2.8-pt"), named("triton_splitKF")
    assert chosen(cutlass, flash, split) == "triton_splitKF"
    assert chosen(cutlass, flash) == "fa2F@2.8-pt"
    assert chosen(cutlass, named("triton_splitKF", "too old")) == "cutlassF-pt"
    assert chosen(named("fa3F@3", "not built")) is None
    assert chosen(named("fa3F@3"), named("fa3F_splitKV@3")) == "fa3F_splitKV@3"


def test_supports_and_package_version_work_without_a_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    xformers = xformers_.Xformers()
    assert xformers.supports(make_point(kv_heads=2).model_copy(update={"device": "cuda"})).ok
    assert not xformers.supports(make_point(n_p=(50, 90))).ok
    assert xformers.package_version().startswith("xformers ")


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@points()
def test_attention_under_the_mask_is_right(axes: dict[str, Any]) -> None:
    inputs = inputs_of(**axes)
    check(flex_attention.FlexSession(inputs, compiled=False), inputs)


def test_a_shared_prefix_is_held_once() -> None:
    point = make_point(n_p=320, n_s=320, batch_size=8, n_c=2)
    session = flex_attention.FlexSession(PooledInputs(point, seed=1), compiled=False)
    assert session.kv_bytes() == 320 * point.token_bytes


@pytest.mark.parametrize(("rows", "chunk"), [(3, 16), (3, 256), (200, 32), (130, 64)])
def test_the_masks_blocks_cover_every_visible_slot_and_full_blocks_are_full(rows: int, chunk: int) -> None:
    tree = PrefixTree(chunk)
    for row in range(rows):
        # Three prefixes; rows with the same prefix are not neighbours.
        tree.join(
            [*range(1000 * (row % 3), 1000 * (row % 3) + 300), *(100_000 + 100 * row + i for i in range(row % 50))]
        )
    plan = tree.plan()
    slots = tree.pool.in_use * chunk
    sees = np.zeros((rows, slots), bool)
    for row, sequence in enumerate(tree.sequences):
        path_slots = (np.array(tree.path(sequence))[:, None] * chunk + np.arange(chunk)).ravel()
        sees[row, path_slots[: tree.lengths[row]]] = True
    part, full = flex_attention.blocks_of(plan, slots)
    assert not (part & full).any()
    size = flex_attention.BLOCK
    for i, j in np.ndindex(part.shape):
        block = sees[i * size : (i + 1) * size, j * size : (j + 1) * size]
        assert full[i, j] == (block.all() and block.shape[1] == size)
        assert part[i, j] or full[i, j] or not block.any()
    assert rows <= size or not (part | full).all()  # a block of rows skips private chunks of rows outside it


def test_a_prefix_shared_by_all_rows_gives_full_blocks() -> None:
    tree = PrefixTree(64)
    for row in range(4):
        tree.join([*range(512), 1000 + row])
    part, full = flex_attention.blocks_of(tree.plan(), tree.pool.in_use * 64)
    assert full.sum() == 512 // flex_attention.BLOCK
    assert part.sum() == 2  # the four private chunks of 64 slots


def test_pytorch_compiles_once_for_all_copies_steps_and_plans_of_a_point(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend  # takes seconds

    counter = CompileCounterWithBackend("eager")

    def compiled(point: AttentionPoint) -> Any:
        torch.compiler.reset()
        return torch.compile(flex_attention.flex_attention, dynamic=False, fullgraph=True, backend=counter)

    monkeypatch.setattr(flex_attention, "_compiled", lru_cache(compiled))
    point = make_point(n_c=20)
    inputs = PooledInputs(point, seed=1)
    copies = [flex_attention.FlexSession(inputs, compiled=True) for _ in range(3)]
    out = torch.empty(point.batch_size, point.heads, point.head_dim)
    for _ in range(2):
        for session in copies:
            session.rewind()
        for step in range(1, 21):
            for session in copies:
                session.append(*inputs.completion(step))
                session.plan()
                session.decode(inputs.queries(step), out)
    assert counter.frame_count == 1
