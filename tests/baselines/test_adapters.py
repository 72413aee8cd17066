"""Every implementation behind the one contract: adapters, what a page shows, what runs where."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from chunkbench.baselines import on_gpu
from chunkbench.baselines.chunk_attn_authors import ChunkAttnAuthors
from chunkbench.baselines.registry import REGISTRY, ROWS, Row
from chunkbench.bench.contract import Answer
from chunkbench.bench.registry import UnknownImplementation
from tests.baselines.checked import check, inputs_of, make_point, points


@points()
@pytest.mark.parametrize("name", REGISTRY.names())
def test_decode_agrees_with_float64_at_every_step_and_after_rewinding(name: str, axes: dict[str, Any]) -> None:
    implementation = REGISTRY.load(name)
    answer = implementation.availability("cpu")
    if not answer.ok:
        pytest.skip(answer.reason)
    supported = implementation.supports(make_point(**axes))
    if not supported.ok:
        pytest.skip(supported.reason)
    inputs = inputs_of(**axes)
    check(implementation.prepare(inputs), inputs)


@pytest.mark.parametrize("name", REGISTRY.names())
def test_an_implementation_with_shares_storage_holds_a_shared_prefix_once(name: str) -> None:
    implementation = REGISTRY.load(name)
    if not implementation.availability("cpu").ok:
        pytest.skip("unavailable")
    inputs = inputs_of(n_p=320, n_s=320, batch_size=8, n_c=2)
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


def test_an_unavailable_implementation_gives_a_reason_and_a_remedy() -> None:
    for surveyed in REGISTRY.survey("cpu"):
        if not surveyed.answer.ok:
            assert surveyed.answer.reason
    xformers = {s.id: s.answer for s in REGISTRY.survey("cpu")}["xformers"]
    assert (xformers.ok, xformers.reason) == (False, "xformers has no CPU operator")
    assert "NVIDIA GPU" in xformers.remedy


def test_the_error_for_an_unknown_name_suggests_a_close_one() -> None:
    with pytest.raises(UnknownImplementation, match="did you mean chunk_attn"):
        REGISTRY.load("chunk_atn")


PAGE = Path(__file__).parents[2] / "docs" / "library.md"
CODE = re.compile(r"```python\n(# my_kernel\.py\n.*?)```", re.DOTALL)


def test_the_example_project_has_the_documented_code() -> None:
    code = CODE.search(PAGE.read_text())
    assert code is not None
    assert (PAGE.parents[1] / "examples" / "my-kernel" / "src" / "my_kernel.py").read_text() == code.group(1)


def test_the_example_of_the_documentation_is_correct() -> None:
    code = CODE.search(PAGE.read_text())
    assert code is not None
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
GPU_ONLY = (
    "flash_attn_package",
    "flash_attn_package_paged",
    "flash_attn_3",
    "xformers",
    "sdpa_efficient",
    "cudnn",
    "flashinfer_paged",
    "flashinfer_cascade",
    "flashinfer_cascade_fa3",
    "flashinfer_flat",
    "flex_attention",
)


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


@pytest.mark.parametrize("name", GPU_ONLY)
def test_a_gpu_library_is_unavailable_on_a_cpu_with_a_remedy(name: str) -> None:
    answer = REGISTRY.load(name).availability("cpu")
    assert not answer.ok
    assert answer.remedy == on_gpu.GPU_REMEDY


@pytest.mark.parametrize("name", GPU_ONLY)
def test_the_remedy_names_the_missing_gpu_or_package(name: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    answer = REGISTRY.load(name).availability("cuda")
    assert not answer.ok
    assert answer.remedy == on_gpu.GPU_REMEDY or answer.remedy.startswith("pip install 'chunkbench[")
    if answer.remedy.startswith("pip"):
        assert answer.remedy[len("pip install 'chunkbench[") : -2] in PYPROJECT["project"]["optional-dependencies"]


@pytest.mark.parametrize("name", GPU_ONLY)
def test_supports_needs_no_gpu(name: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    for axes in ({}, {"n_p": (50, 90)}, {"kv_heads": 1}, {"dtype": "bfloat16", "head_dim": 80}):
        answer = REGISTRY.load(name).supports(make_point(**axes).model_copy(update={"device": "cuda"}))
        assert answer.ok or answer.reason


def test_a_package_that_does_not_load_is_unavailable_with_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> object:
        raise ImportError("libcudart.so.13: cannot open shared object file\nand more")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    answer = on_gpu.gpu_library("cuda", "torch", "flashinfer", load)
    assert not answer.ok
    assert answer.reason.endswith("does not load: libcudart.so.13: cannot open shared object file")


SCRIPT = Path(__file__).parents[2] / "scripts" / "build_chunk_attn_authors.py"


def test_without_a_build_it_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    answer = ChunkAttnAuthors().availability("cpu")
    assert not answer.ok
    assert answer.reason == "the authors' kernel is not built"
    assert SCRIPT.name in answer.remedy
    assert ChunkAttnAuthors().package_version() is None


def test_a_build_that_does_not_load_gives_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chunk_attn_c.so").write_bytes(b"no library")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "chunk_attn_c", raising=False)
    answer = ChunkAttnAuthors().availability("cpu")
    assert answer.reason.startswith("the authors' kernel does not load: ")
    assert ChunkAttnAuthors().package_version() == "chunk-attention, unknown build"


@pytest.mark.parametrize(
    ("axes", "reason"),
    [({"dtype": "bfloat16"}, "float32 only"), ({"kv_heads": 2}, "no grouped heads")],
)
def test_what_the_authors_kernel_cannot_compute(axes: dict[str, object], reason: str) -> None:
    answer = ChunkAttnAuthors().supports(make_point(**axes))
    assert not answer.ok
    assert reason in answer.reason
    assert not ChunkAttnAuthors().availability("cuda").ok


def test_the_script_refuses_a_folder_that_is_no_checkout(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, SCRIPT, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "is no checkout of microsoft/chunk-attention: cpp/chunk_attn/chunk.cpp is missing" in done.stderr
