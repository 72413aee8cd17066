"""Every registered implementation answers on every machine whether it is available, with a reason for a no."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import torch

from chunkbench.baselines import gpu
from chunkbench.baselines.registry import REGISTRY, ROWS
from chunkbench.bench.contract import Answer
from tests.baselines.checks import make_point

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
    assert answer.remedy == gpu.GPU_REMEDY


@pytest.mark.parametrize("name", GPU_ONLY)
def test_the_remedy_names_the_missing_gpu_or_package(name: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    answer = REGISTRY.load(name).availability("cuda")
    assert not answer.ok
    assert answer.remedy == gpu.GPU_REMEDY or answer.remedy.startswith("pip install 'chunkbench[")
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
    answer = gpu.gpu_library("cuda", "torch", "flashinfer", load)
    assert not answer.ok
    assert answer.reason.endswith("does not load: libcudart.so.13: cannot open shared object file")
