"""Which systems experiments can name: the rows of this package, and those that others register."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

pytest.importorskip("aiohttp")

from chunkbench.bench.experiment.terms import Style
from chunkbench.workloads.serving import methods
from chunkbench.workloads.serving.methods import SYSTEMS
from chunkbench.workloads.serving.servers.endpoint import Endpoint
from chunkbench.workloads.serving.servers.system import Setting
from tests.workloads.serving.servers.test_process import SETTING


def command(name: str, setting: Setting, folder: Path) -> list[str]:
    system = SYSTEMS.load(name)
    launch = system.launch(setting, folder, 8000)
    assert launch is not None
    return list(launch.command)


def test_variants_of_our_engine_differ_in_their_options(tmp_path: Path) -> None:
    usual = command("chunk_llama", SETTING, tmp_path)
    for name, option, value in (
        ("chunk_llama_no_tpp", "two-phase", "sequence-first"),
        ("chunk_llama_no_sharing", "two-phase", "no-sharing"),
        ("chunk_llama_radix", "live", "radix"),
        ("transformers", "chunk", "transformers"),
    ):
        assert command(name, SETTING, tmp_path) == [value if word == option else word for word in usual], name


def test_systems_follow_constraints_in_their_own_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = command("chunk_llama", SETTING, tmp_path)
    assert command("unconstrained", SETTING, tmp_path) == usual
    assert SYSTEMS.load("unconstrained").constraint == "left out"
    assert SYSTEMS.load("transformers").constraint == "refused"
    for name in ("mask", "interleaved", "jump", "jump-retokenize", "forced-tokens"):
        given = command(f"chunk_llama_{name.replace('-', '_')}", SETTING, tmp_path)
        assert given == [*usual, "--constrained", name]
    given = command("chunk_llama_jump_compiled", SETTING, tmp_path)
    assert given == [*usual, "--constrained", "jump", "--compiled", "0"]
    monkeypatch.setenv("CHUNKBENCH_VLLM_PYTHON", sys.executable)
    asked = replace(SETTING, constrained=True)
    for name, backend in (("vllm", "xgrammar"), ("vllm_guidance", "guidance")):
        assert "--skip-tokenizer-init" in command(name, SETTING, tmp_path)
        words = command(name, asked, tmp_path)
        assert "--skip-tokenizer-init" not in words
        assert words[words.index("--structured-outputs-config") + 1] == f'{{"backend": "{backend}"}}'


def test_every_system_has_a_label_and_a_style() -> None:
    assert SYSTEMS.names() == sorted(SYSTEMS.names())
    loaded = [SYSTEMS.load(name) for name in SYSTEMS.names()]
    assert len({system.label for system in loaded}) == len(loaded)
    assert all(SYSTEMS.style(name) == system.style for name, system in zip(SYSTEMS.names(), loaded, strict=True))


class Other(Endpoint):
    label = "other"
    style = Style(marker="*")


ROW = Other()


@pytest.mark.parametrize("what", ["Other", "ROW"])
def test_others_register_a_class_or_an_object(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = [EntryPoint("other", f"{__name__}:{what}", methods.GROUP), EntryPoint("vllm", "gone:Gone", "")]
    monkeypatch.setattr("chunkbench.bench.registry.entry_points", lambda group: {methods.GROUP: theirs}[group])
    systems = methods.Registry({"vllm": SYSTEMS.load("vllm")}, methods.GROUP)
    assert isinstance(systems.load("other"), Other)
    assert systems.style("other") == Other.style
    assert systems.availability("other", "cpu")[0] == "other"
    assert systems.style("vllm") == SYSTEMS.style("vllm")  # the names of this package are taken
