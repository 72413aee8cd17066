"""`chunkbench traces` from end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from chunkbench.cli.traces import command


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 1000 * n, "input_length": 1100, "output_length": 10 + n, "hash_ids": [0, 1, 2 + n % 2]}
        for n in range(8)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_tables(trace: Path, form: str) -> None:
    done = CliRunner().invoke(command, [str(trace), "--format", form, "--cache", "3"])
    assert done.exit_code == 0, done.output
    text = " ".join(done.stdout.split())
    for words in ("8 requests", "1.00 requests/s over 7 s", "1,100", "24 blocks of 512 tokens, 4 of them", "1,536"):
        assert words in text, words


def test_json(trace: Path) -> None:
    done = CliRunner().invoke(command, [str(trace), "--format", "json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["format"], told["block_tokens"], told["requests"]) == ("Mooncake", 512, 8)
    assert [one["cache_blocks"] for one in told["hits"]] == [1000, 10000, 30000, 50000, 100000, None]
    assert told["hits"][-1]["blocks"] == pytest.approx(20 / 24)


def test_a_bad_line_ends_with_its_place(trace: Path) -> None:
    trace.write_text(trace.read_text() + "{}\n")
    done = CliRunner().invoke(command, [str(trace)])
    assert done.exit_code == 2
    assert "trace.jsonl:9: has no" in done.stderr


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, [str(tmp_path / "none.jsonl")])
    assert done.exit_code == 2
    assert "none.jsonl: cannot be read" in done.stderr
