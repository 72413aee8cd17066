"""`chunkbench find-heads`: words that are refused before anything is read, and a whole search of a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from chunkbench.cli.main import cli
from tests.server.engine.models import write_checkpoint


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["find-heads", *map(str, words)], catch_exceptions=False)
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "no folder of a checkpoint"),
        (["small-llama"], "has random weights here"),
        (["small-llama", "--out", "heads.png"], "the picture is written beside them"),
        (["small-llama", "--out", "/nowhere/heads.json"], "cannot be written"),
    ],
)
def test_what_cannot_be_searched_is_refused_at_once(words: list[str], message: str) -> None:
    code, output = run(*words)
    assert code == 2
    assert message in output


def test_a_checkpoint_is_searched(tmp_path: Path) -> None:
    folder = write_checkpoint("llama-grouped", tmp_path / "tiny")
    out = tmp_path / "heads.json"
    assert run(folder, "--tokens", 5000, "--out", out)[0] == 2  # more than it has positions for
    code, output = run(folder, "--tokens", 40, "--dtype", "float32", "--out", out)
    assert code == 0, output
    assert "tiny: 1 of 4 KV heads are retrieval heads (40 tokens, 4 times)" in output or "2 of 4 KV heads" in output
    assert len(json.loads(out.read_text())["echo"]) == 2
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
