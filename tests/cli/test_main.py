"""The command `chunkbench`: an error prints one line and sets the exit code, without a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from chunkbench.bench.experiment import Experiment, load_experiment
from chunkbench.cli import main as module
from chunkbench.cli import quick
from chunkbench.cli.main import cli
from chunkbench.cli.output import command_line
from tests.command import chunkbench


def exit_code_after(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    """Exit code of a command that raises `error`."""

    @click.command()
    def failing() -> None:
        raise error

    monkeypatch.setattr(module, "cli", failing)
    monkeypatch.setattr(sys, "argv", ["chunkbench"])
    with pytest.raises(SystemExit) as exit_info:
        module.main()
    code = exit_info.value.code
    assert isinstance(code, int)
    return code


def test_a_full_disk_prints_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    full = OSError(28, "No space left on device", "cases.jsonl")
    assert exit_code_after(monkeypatch, full) == 2
    assert capsys.readouterr().err.splitlines() == ["chunkbench: [Errno 28] No space left on device: 'cases.jsonl'"]


def test_an_interrupt_exits_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_after(monkeypatch, KeyboardInterrupt()) == 130
    assert capsys.readouterr().err.strip() == "interrupted"


def test_an_interrupt_during_imports_exits_with_130(tmp_path: Path) -> None:
    # This module takes the place of pydantic, and its import sends the signal of Ctrl-C.
    (tmp_path / "pydantic.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    root = Path(module.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", "from chunkbench.cli.main import main; main()", "validate", "smoke"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"},
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
        check=False,
    )
    assert done.returncode == 130
    assert done.stderr.strip() == "interrupted"


def test_an_output_that_lacks_characters_is_printed_with_others() -> None:
    done = chunkbench("list", "--kind", "decode", encoding="latin-1")
    assert (done.code, "???" in done.stdout, done.stderr) == (0, True, "")


def test_a_name_that_is_no_utf_8_can_be_printed_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a\udcff.yaml"
    path.write_bytes(Path("experiments/smoke.yaml").read_bytes())
    assert chunkbench("validate", str(path)).stdout.startswith(f"{tmp_path}/a?.yaml: valid")
    monkeypatch.setattr(sys, "argv", ["chunkbench", "run", str(path)])
    assert command_line() == ["chunkbench", "run", f"{tmp_path}/a?.yaml"]


def test_the_list_of_commands_has_whole_sentences() -> None:
    listed = CliRunner().invoke(cli, ["--help"]).output.split("Commands:")[1]
    assert "..." not in listed
    assert all(line.rstrip().endswith(".") for line in listed.strip().splitlines())


@pytest.mark.parametrize("name", sorted({*module._COMMANDS} - {"run", "completion"}))
def test_help_ends_with_examples(name: str) -> None:
    text = CliRunner().invoke(cli, [name, "--help"]).output
    _, examples = text[text.index("Options:") :].split("Examples:\n")
    assert f"    chunkbench {name}" in examples


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["rnu"], "No such command 'rnu'; did you mean run?"),
        (["reproduce", "--only", "tabel3"], "no experiment 'tabel3'; did you mean table3?"),
        (["run", "table3", "--only", "chunk_atn"], "chunk_atn is not in this experiment; did you mean chunk_attn?"),
        (["quick", "--model", "lama3-8b"], "did you mean llama3-8b?"),
        (["quick", "--n-p", "100", "--n-s", "200"], "200 shared tokens do not fit into prompts of 100"),
    ],
)
def test_a_mistyped_name_gets_a_suggestion(words: list[str], told: str) -> None:
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 2
    assert told in " ".join(done.output.split())


def test_quick_says_what_sharing_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_a_second(*words: Any) -> Experiment:
        return load_experiment(*words).model_copy(update={"budget_s": 1.0})

    monkeypatch.setattr("chunkbench.bench.experiment.load_experiment", in_a_second)
    words = ["quick", "--n-p", "128", "--n-s", "64", "--batch", "4", "--out", str(tmp_path / "run"), "-q"]
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert done.exception is None, done.output
    first, memory, time, *_, last = done.output.splitlines()
    assert first.startswith("4 requests of 128 tokens, 64 of them shared; llama2-7b")
    # 4 * (128 + 16) tokens, or 64 + 4 * (64 + 16), of 2 * 32 * 128 elements in 32 layers; whole blocks and chunks.
    assert "K/V of all 32 layers" in memory
    assert "saved" in memory
    assert "as fast as without sharing (PagedAttn" in time
    assert last == f"report: {tmp_path / 'run' / 'report.html'}"
    assert (tmp_path / "run" / "report.html").exists()


def test_quick_takes_lengths_from_prompts(tmp_path: Path) -> None:
    prompts = [[*range(96), 200 + number] for number in range(3)]
    (tmp_path / "ids.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    axes, told = quick._of_prompts((tmp_path / "ids.jsonl",), None)
    assert axes == {"tree": "[[96, [1, 1, 1]]]"}
    assert told == "3 prompts, of 97 tokens, with what they share"
    refused = CliRunner().invoke(cli, ["quick", "--prompts", str(tmp_path / "ids.jsonl"), "--batch", "3"])
    assert refused.exit_code == 2
    assert "--prompts states --n-p, --n-s and --batch" in refused.output
