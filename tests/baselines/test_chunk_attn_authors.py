"""The authors' kernel where it is not built: its adapter and its build script. `test_adapters` runs it where it is."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from chunkbench.baselines.chunk_attn_authors import ChunkAttnAuthors
from tests.baselines.checks import make_point

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
