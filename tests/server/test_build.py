"""From the words of `chunkbench serve` to an engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from chunkbench.cli.main import cli
from chunkbench.server import run
from chunkbench.server.build import ModelChoice, build_backend
from chunkbench.server.engine import EngineOptions, Request
from tests.server.engine.models import config


def test_no_budget_makes_the_start_long_and_lines_say_what_it_does(tmp_path: Path) -> None:
    config("llama-grouped").save_pretrained(tmp_path / "Llama-3.2-1B")
    choice, said = ModelChoice(str(tmp_path / "Llama-3.2-1B" / "config.json"), torch.float32), list[str]()
    backend, most = build_backend(choice, "chunk", EngineOptions(kv_bytes=1 << 20, prompt_budget=2**40), said.append)
    backend.check(Request("r", [1], most - 1))
    assert [line.split()[:2] for line in said] == [["Llama-3.2-1B:", "drawing"], ["Llama-3.2-1B:", "preparing"]]


@pytest.mark.parametrize(
    ("arguments", "cache"),
    [
        ([], "radix"),
        (["--attention", "sequence-first"], "radix"),
        (["--attention", "no-sharing"], "live"),
        (["--cache", "live"], "live"),
    ],
)
def test_prefixes_are_kept_unless_the_words_say_otherwise(
    arguments: list[str], cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[EngineOptions] = []

    def note(choice: object, engine: object, options: EngineOptions, *_: object) -> None:
        asked.append(options)
        raise ValueError("not built")

    monkeypatch.setattr(run, "build_backend", note)
    result = CliRunner().invoke(cli, ["serve", "small-llama", "--port", "0", *arguments])
    assert "not built" in result.output
    assert [options.cache for options in asked] == [cache]
