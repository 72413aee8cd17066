"""When the plug-in takes part, and what it says when it cannot."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest
import torch

from chunkbench.kernels import cpu
from chunkbench.plugins.vllm import plugin, register


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
