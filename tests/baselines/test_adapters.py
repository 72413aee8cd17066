"""Every implementation behind the one contract: adapters, what a page shows, what runs where."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.attention.tree import PrefixTree
from chunkbench.baselines import on_gpu
from chunkbench.baselines.chunk_attn_authors import ChunkAttnAuthors
from chunkbench.baselines.registry import KV_DTYPES_OF, LATENT_FORMS, REGISTRY, ROWS, Row
from chunkbench.baselines.segments import Requests, flat, levels
from chunkbench.bench.contract import Answer
from chunkbench.bench.experiment.sessions import TOLERANCE
from chunkbench.bench.workers.heap import visible_storages
from chunkbench.bench.workers.inputs import PooledInputs
from chunkbench.draft import CHAIN, why_not_verified
from chunkbench.kernels import cpu
from chunkbench.kv_dtype import why_not_stored
from chunkbench.workloads.decode import DecodeWorkload
from tests.baselines.checked import DRAFTS, IN_8_BITS, WINDOWS, check, importable, inputs_of, make_point, points

ORDINARY = [name for name in REGISTRY.names() if name not in LATENT_FORMS]
"""Rows of latent attention have tests of their own (test_latent.py)."""


@points(more=IN_8_BITS | DRAFTS)
@pytest.mark.parametrize("name", ORDINARY)
def test_decode_agrees_with_float64_at_every_step_and_after_rewinding(name: str, axes: dict[str, Any]) -> None:
    implementation = REGISTRY.load(name)
    answer = implementation.availability("cpu")
    if not answer.ok:
        pytest.skip(answer.reason)
    axes = axes | {"kv_dtype": KV_DTYPES_OF.get(name, axes.get("kv_dtype", "same"))}
    reason = why_not_stored(axes["kv_dtype"], implementation.kv_dtypes)
    reason = reason or why_not_verified(axes.get("query_rows", 1), axes.get("draft", CHAIN), implementation.drafts)
    supported = implementation.supports(make_point(**axes))
    if reason or not supported.ok:
        pytest.skip(reason or supported.reason)
    inputs = inputs_of(**axes)
    check(implementation.prepare(inputs), inputs)


@pytest.mark.parametrize("axes", WINDOWS.values(), ids=WINDOWS.keys())
@pytest.mark.parametrize("name", ["sliding_window", "vllm_sliding_window"])
def test_rows_of_a_sliding_window_read_exactly_the_window(name: str, axes: dict[str, Any]) -> None:
    implementation, inputs = REGISTRY.load(name), inputs_of(**axes)
    if not implementation.availability("cpu").ok:
        pytest.skip("unavailable")
    session, work = implementation.prepare(inputs), DecodeWorkload()
    for step in range(1, inputs.point.n_c + 1):
        session.append(*inputs.completion(step))
        session.plan()
        check = work.check(inputs, name, step, step, False)
        out = torch.full_like(check.q, float("nan"))
        session.decode(check.q, out)
        assert check.max_error(out) < TOLERANCE[inputs.point.dtype]
    without = implementation.supports(make_point())
    assert not without.ok
    assert "needs the axis window" in without.reason


@pytest.mark.parametrize("name", ORDINARY)
def test_an_implementation_with_shares_storage_holds_a_shared_prefix_once(name: str) -> None:
    implementation = REGISTRY.load(name)
    if not implementation.availability("cpu").ok:
        pytest.skip("unavailable")
    window = {"window": 400} if name.endswith("sliding_window") else {}
    inputs = inputs_of(n_p=320, n_s=320, batch_size=8, n_c=2, **window)
    held = implementation.prepare(inputs).kv_bytes() / inputs.point.token_bytes
    if implementation.shares_storage:
        assert held < 2 * 320
    else:
        assert held >= 8 * 320


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_what_differs_in_a_row_is_an_attribute_of_its_adapter(row: Row) -> None:
    loaded = row.load()
    assert loaded.id == row.id
    assert row.differing.keys() <= {*dir(loaded.__base__)}


PAGE = Path(__file__).parents[2] / "docs" / "library.md"
CODE = re.compile(r"```python\n(# my_kernel\.py\n.*?)```", re.DOTALL)


def test_the_example_of_the_documentation_is_correct_and_that_of_the_project() -> None:
    code = CODE.search(PAGE.read_text())
    assert code is not None
    assert (PAGE.parents[1] / "examples" / "my-kernel" / "src" / "my_kernel.py").read_text() == code.group(1)
    names: dict[str, Any] = {}
    exec(code.group(1), names)
    implementation = names["MyKernel"]()
    assert implementation.availability("cpu").ok
    assert not implementation.availability("cuda").ok
    inputs = inputs_of(n_p=(20, 30), n_s=10, n_c=3, batch_size=3, kv_heads=2, head_dim=32)
    session = implementation.prepare(inputs)
    check(session, inputs)
    held = sum(len(prompt) + 3 for prompt in inputs.prompts)
    assert session.kv_bytes() == held * inputs.point.token_bytes


PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
GPU_ONLY = [
    *("flash_attn_package", "flash_attn_package_paged", "flash_attn_3", "xformers", "sdpa_efficient", "cudnn"),
    *("flashinfer_paged", "flashinfer_cascade", "flashinfer_cascade_fa3", "flashinfer_flat", "flex_attention"),
]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", [row.id for row in ROWS])
def test_availability_answers_on_every_device(name: str, device: str) -> None:
    implementation = REGISTRY.load(name)
    answer = implementation.availability(device)
    assert isinstance(answer, Answer)
    assert answer.ok or answer.reason
    version = implementation.package_version()
    # What is not installed has no version.
    assert isinstance(version, str) if answer.ok else version is None or version


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("name", GPU_ONLY)
def test_without_a_gpu_a_library_says_what_is_missing_and_what_it_supports(name: str) -> None:
    implementation = REGISTRY.load(name)
    assert implementation.availability("cpu").remedy == on_gpu.GPU_REMEDY
    answer = implementation.availability("cuda")
    assert not answer.ok
    if answer.remedy != on_gpu.GPU_REMEDY:
        extra = re.fullmatch(r"pip install 'chunkbench\[(.+)\]'", answer.remedy)
        assert extra
        assert extra.group(1) in PYPROJECT["project"]["optional-dependencies"]
    for axes in ({}, {"n_p": (50, 90)}, {"kv_heads": 1}, {"dtype": "bfloat16", "head_dim": 80}):
        supported = implementation.supports(make_point(**axes).model_copy(update={"device": "cuda"}))
        assert supported.ok or supported.reason


@pytest.mark.parametrize(
    ("name", "axes", "ok"),
    [
        ("flashinfer_flat", {"dtype": "bfloat16"}, True),
        ("flashinfer_flat", {}, False),
        ("flashinfer_flat", {"dtype": "float16", "head_dim": 96}, False),
        ("flash_attn_package", {"dtype": "float32"}, False),
        ("flash_attn_package", {"dtype": "float16"}, True),
        ("flash_attn_package", {"dtype": "bfloat16"}, True),
        ("flash_attn_package", {"dtype": "float16", "head_dim": 512}, False),
        # Pages hold a multiple of 256 tokens.
        ("flash_attn_package_paged", {"dtype": "float16", "block_size": 512}, True),
        ("flash_attn_package_paged", {"dtype": "float16", "block_size": 16}, False),
        ("flash_attn_3", {"dtype": "float16"}, False),
        ("flash_attn_3", {"dtype": "bfloat16"}, True),
        ("flash_attn_3", {"dtype": "bfloat16", "head_dim": 68}, False),
        ("xformers", {"n_p": (50, 90)}, False),
        ("sdpa_efficient", {"n_p": (50, 90)}, True),
        ("cudnn", {"dtype": "float16"}, True),
        ("cudnn", {}, False),
        ("cudnn", {"dtype": "float16", "n_p": (50, 90)}, False),
        ("vllm_paged_attn", {"block_size": 8}, True),
        ("vllm_paged_attn", {"block_size": 64}, False),
        ("vllm_paged_attn", {"head_dim": 120}, True),
        ("vllm_paged_attn", {"head_dim": 72}, False),
        ("vllm_paged_attn", {"dtype": "bfloat16", "heads": 32, "kv_heads": 32, "head_dim": 128}, True),
        ("vllm_paged_attn", {"dtype": "float32", "heads": 32, "kv_heads": 32, "head_dim": 128}, False),
        ("vllm_paged_attn", {"dtype": "float16", "heads": 64, "kv_heads": 64, "head_dim": 128}, False),
        ("vllm_paged_attn", {"dtype": "float16", "heads": 64, "kv_heads": 8, "head_dim": 128}, True),
        ("chunk_attn_authors", {"dtype": "bfloat16"}, False),
        ("chunk_attn_authors", {"kv_heads": 2}, False),
    ],
)
def test_points_that_an_implementation_refuses_are_unsupported(name: str, axes: dict[str, Any], ok: bool) -> None:
    point = make_point(**axes).model_copy(update={"device": "cuda"})
    answer = REGISTRY.load(name).supports(point)
    assert answer.ok == ok
    assert ok or answer.reason


SCRIPT = Path(__file__).parents[2] / "scripts" / "build_chunk_attn_authors.py"


def test_without_a_build_it_says_how_to_build_it() -> None:
    with importable(chunk_attn_c=None):
        answer = ChunkAttnAuthors().availability("cpu")
        assert ChunkAttnAuthors().package_version() is None
    assert answer.reason == "the authors' kernel is not built"
    assert SCRIPT.name in answer.remedy


def test_a_build_that_does_not_load_gives_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chunk_attn_c.so").write_bytes(b"no library")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "chunk_attn_c", raising=False)
    answer = ChunkAttnAuthors().availability("cpu")
    assert answer.reason.startswith("the authors' kernel does not load: ")
    assert ChunkAttnAuthors().package_version() == "chunk-attention, unknown build"


def test_the_script_refuses_a_folder_that_is_no_checkout(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, SCRIPT, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "is no checkout of microsoft/chunk-attention: cpp/chunk_attn/chunk.cpp is missing" in done.stderr


needs_native = pytest.mark.skipif(cpu.native() is None, reason=cpu.why_missing() or "built")
POINT = make_point(n_p=96, n_s=None, tree=((32, ((32, 3), (0, 2))),), batch_size=5, n_c=20, kv_heads=2, head_dim=32)


@needs_native
def test_sessions_of_a_point_share_memory_and_take_turns() -> None:
    inputs = PooledInputs(POINT, 0)
    sessions = [REGISTRY.load(name).prepare(inputs) for name in ("plan_flat", "chunk_attn", "plan_node_wise")]
    storages = [visible_storages(session) for session in sessions]
    assert storages[0] == storages[1] == storages[2]
    q, outs = inputs.queries(1), []
    for session in sessions:
        session.rewind()
        for step in range(1, POINT.n_c + 1):
            session.append(*inputs.completion(step))
            session.plan()
        outs.append(torch.full_like(q, float("nan")))
        session.decode(q, outs[-1])
    for out in outs[1:]:
        torch.testing.assert_close(out, outs[0])
    # Of both planners only one reads the root and its child once for several rows.
    traces = [session.trace(q, outs[0], "decode") for session in (sessions[0], sessions[2])]
    assert [trace is not None and bool(trace.shared.any()) for trace in traces] == [False, True]


@needs_native
def test_another_point_has_memory_of_its_own_and_what_nobody_reads_is_freed() -> None:
    first, second = PooledInputs(POINT, 0), PooledInputs(POINT, 0)
    flat, chunk_attn = REGISTRY.load("plan_flat"), REGISTRY.load("chunk_attn")
    kept = flat.prepare(first)
    assert not visible_storages(kept).keys() & visible_storages(flat.prepare(second)).keys()
    again = visible_storages(chunk_attn.prepare(first))
    assert again == visible_storages(kept)
    del kept
    gc.collect()
    from chunkbench.baselines import chunk_attn

    assert not [reference for reference in chunk_attn._OPEN.values() if reference() is not None]


SIZE = 4


@st.composite
def forests(draw: st.DrawFn) -> PrefixTree:
    """A tree of prompts that continue prefixes of each other, joined in any order.

    Then some tokens are appended, and sometimes one sequence leaves.
    """
    tree = PrefixTree(SIZE)
    prompts: list[list[int]] = []
    for number in range(draw(st.integers(1, 9))):
        parent = draw(st.sampled_from(prompts)) if prompts and draw(st.booleans()) else []
        prefix = parent[: draw(st.integers(0, len(parent)))]
        private = draw(st.integers(0 if prefix else 1, 11))
        prompts.append(prefix + [100 * number + position for position in range(private)])
    for index in draw(st.permutations(range(len(prompts)))):
        tree.join(prompts[index])
    for step in range(draw(st.integers(0, 6))):
        tree.append([10_000 + 100 * step + row for row in range(len(tree))])
    if len(tree) > 1 and draw(st.booleans()):
        tree.leave(draw(st.sampled_from(tree.sequences)))
    return tree


def slots(requests: Requests, request: int) -> list[int]:
    """Slots that a request reads."""
    pages = requests.indices[requests.kv_indptr[request] : requests.kv_indptr[request + 1]].tolist()
    last = int(requests.last_page_len[request])
    assert (1 <= last <= SIZE) if pages else last == 0
    page_slots = [page * SIZE + offset for page in pages for offset in range(SIZE)]
    return page_slots[: max(0, len(page_slots) - SIZE) + last]


def check_requests(requests: Requests, rows: int) -> None:
    count = len(requests.last_page_len)
    for indptr in (requests.qo_indptr, requests.kv_indptr):
        assert indptr.dtype == np.int32
        assert len(indptr) == count + 1
        assert indptr[0] == 0
    assert (np.diff(requests.qo_indptr) > 0).all()
    assert (np.diff(requests.kv_indptr) >= 0).all()
    assert requests.qo_indptr[-1] == rows
    assert requests.kv_indptr[-1] == len(requests.indices)
    assert requests.indices.dtype == requests.last_page_len.dtype == np.int32


def slots_of(tree: PrefixTree, sequence: int) -> list[int]:
    length = tree.length(sequence)
    return [chunk * SIZE + offset for chunk in tree.path(sequence) for offset in range(SIZE)][:length]


@given(forests())
def test_flat_reads_each_rows_tokens_in_order_and_each_chunk_once(tree: PrefixTree) -> None:
    layout = flat(tree.plan())
    check_requests(layout.requests, len(layout.rows))
    assert len(set(layout.requests.indices.tolist())) == len(layout.requests.indices)
    read = [slots(layout.requests, request) for request in range(len(layout.requests.last_page_len))]
    request_of = np.repeat(np.arange(len(read)), np.diff(layout.requests.qo_indptr))
    for row, sequence in enumerate(tree.sequences):
        states = [s for s in layout.states[row].tolist() if s < len(layout.rows)]
        padding = layout.states[row, len(states) :].tolist()
        assert padding == [len(layout.rows)] * (layout.states.shape[1] - len(states))
        assert (layout.rows[states] == row).all()
        assert [slot for s in states for slot in read[request_of[s]]] == slots_of(tree, sequence)
    assert sorted(layout.states[layout.states < len(layout.rows)].tolist()) == list(range(len(layout.rows)))


@given(forests())
def test_levels_read_every_rows_tokens_and_the_first_merge_has_a_result_for_every_row(tree: PrefixTree) -> None:
    plan = tree.plan()
    tree_levels = levels(plan)
    row_slots: list[list[int]] = [[] for _ in tree.sequences]
    filled = []
    for level in tree_levels:
        check_requests(level, len(tree))
        read = [slots(level, request) for request in range(len(level.last_page_len))]
        by_position = np.repeat(np.arange(len(read)), np.diff(level.qo_indptr))
        filled.append([bool(read[request]) for request in by_position])
        for position, request in enumerate(by_position):
            row_slots[plan.order[position]] += read[request]
    for row, sequence in enumerate(tree.sequences):
        assert row_slots[row] == slots_of(tree, sequence)
    assert all(first or last for first, last in zip(filled[0], filled[-1], strict=True))
    chunks = np.concatenate([level.indices for level in tree_levels])
    assert len(set(chunks.tolist())) == len(chunks)


@given(forests())
def test_requests_grow_with_tokens_appended_inside_chunks(tree: PrefixTree) -> None:
    plan = tree.plan()
    layout, tree_levels = flat(plan), levels(plan)
    tree.append(range(50_000, 50_000 + len(tree)))
    new_plan = tree.plan()
    if new_plan is not plan:
        return
    np.testing.assert_equal(vars(layout.requests.grown(new_plan)), vars(flat(new_plan).requests))
    np.testing.assert_equal(vars(tree_levels[-1].grown(new_plan)), vars(levels(new_plan)[-1]))
    for shared in tree_levels[:-1]:
        np.testing.assert_equal(vars(shared.grown(new_plan)), vars(shared))
