"""The command line: its commands, lists and output."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import click
import pytest
from click.testing import CliRunner

from chunkbench.bench.experiment import Experiment, load_experiment
from chunkbench.cli import quick
from chunkbench.cli.main import cli
from chunkbench.cli.output import explain, run_exit_code, write_experiment, write_text
from chunkbench.run_error import Remedy, RunError
from tests.command import chunkbench

ROOT = Path(__file__).parents[2]


def python(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A child of the interpreter, whom Ctrl-C interrupts."""
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
        check=False,
    )


def test_an_interrupt_also_of_an_import_is_one_line(tmp_path: Path) -> None:
    """This module takes the place of pydantic, and its import sends the signal of Ctrl-C."""
    (tmp_path / "pydantic.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    script = "from chunkbench.cli.main import main; main()"
    done = python("-c", script, "validate", "smoke", PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert (done.returncode, done.stderr.strip()) == (130, "interrupted")


@pytest.mark.parametrize(("words", "slow"), [("--help", {"numpy", "pydantic", "rich", "torch"}), ("list", {"torch"})])
def test_small_commands_import_no_slow_library(words: str, slow: set[str]) -> None:
    script = "import atexit, sys; from chunkbench.cli.main import main; atexit.register(lambda: print(*sys.modules))"
    done = python("-c", f"{script}; main()", words, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert not slow & set(done.stdout.splitlines()[-1].split())


def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "chunkbench", "list", "axes"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (2, b"chunkbench: [Errno 28] No space left on device\n")


def test_a_command_to_continue_can_be_typed(tmp_path: Path) -> None:
    """What is no UTF-8 is a question mark in it."""
    (tmp_path / "chunkbench").touch(0o755)
    script = "import sys; from chunkbench.cli.output import *; print(*typed_command(), sep='|')"
    for started, path, program in (
        (tmp_path / "chunkbench", tmp_path, "chunkbench"),
        (".venv/bin/chunkbench", "", ".venv/bin/chunkbench"),
        ("/lib/chunkbench/__main__.py", "", f"{sys.executable}|-m|chunkbench"),
    ):
        said = f"import sys; sys.argv = ['{started}', 'run', 'a\\udcff']; {script}"
        done = python("-c", said, PATH=str(path), PYTHONPATH=str(ROOT))
        assert done.stdout.strip() == f"{program}|run|a?", done.stderr


COLOURS = [
    ({}, True),
    ({"NO_COLOR": ""}, True),
    ({"NO_COLOR": "1"}, False),
    ({"NO_COLOR": "0"}, False),
    ({"TERM": "dumb"}, False),
    ({"TERM": "unknown"}, False),
]


def test_colours_go_to_terminals_that_know_them() -> None:
    script = "import json, os, sys; from chunkbench.cli.output import colour_wanted\n"
    script += "for changes in json.loads(sys.argv[1]):\n os.environ.pop('NO_COLOR', None)\n"
    script += " os.environ.update({'TERM': 'xterm-256color', **changes})\n print(colour_wanted())"
    command = [sys.executable, "-c", script, json.dumps([changes for changes, _ in COLOURS])]
    ours, theirs = pty.openpty()
    subprocess.run(command, stdout=theirs, check=True)
    assert os.read(ours, 999).decode().split() == [str(wanted) for _, wanted in COLOURS]
    piped = subprocess.run(command, capture_output=True, text=True, check=True)
    assert piped.stdout.split() == ["False"] * len(COLOURS)


def test_an_output_that_lacks_characters_is_printed_with_others() -> None:
    done = chunkbench("list", "--kind", "decode", encoding="latin-1")
    assert (done.code, "???" in done.stdout, done.stderr) == (0, True, "")


def test_a_name_that_is_no_utf_8_can_be_printed(tmp_path: Path) -> None:
    path = tmp_path / "a\udcff.yaml"
    path.write_bytes((ROOT / "experiments/smoke.yaml").read_bytes())
    assert chunkbench("validate", str(path)).stdout.startswith(f"{tmp_path}/a?.yaml: valid")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["rnu"], "No such command 'rnu'; did you mean run?"),
        (["reproduce", "--only", "tabel3"], "no experiment 'tabel3'; did you mean table3?"),
        (["run", "table3", "--only", "chunk_atn"], "chunk_atn is not in this experiment; did you mean chunk_attn?"),
        (["quick", "--model", "lama3-8b"], "did you mean llama3-8b?"),
        (["quick", "--n-p", "100", "--n-s", "200"], "200 shared tokens do not fit into prompts of 100"),
        (["list", "axes", "--kind", "decoding"], "is none of decode, memory"),
        (["list", "everything"], "is not one of 'experiments', 'implementations', 'axes'"),
    ],
)
def test_a_wrong_word_is_named(words: list[str], told: str) -> None:
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 2
    assert told in " ".join(done.output.split())


def test_quick_says_what_sharing_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_a_second(*words: Any) -> Experiment:
        return load_experiment(*words).model_copy(update={"budget_s": 1.0})

    monkeypatch.setattr("chunkbench.bench.experiment.load_experiment", in_a_second)
    point = ["--model", "small-llama", "--n-p", "128", "--n-s", "64", "--batch", "4"]
    words = ["quick", *point, "-q", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert done.exception is None, done.output
    first, memory, time, *_, last = done.output.splitlines()
    assert first.startswith("4 requests of 128 tokens, 64 of them shared; small-llama")
    assert "K/V of all 2 layers" in memory
    assert "saved" in memory
    assert "as fast as without sharing (PagedAttn" in time
    assert last == f"report: {tmp_path / 'run' / 'report.html'}"
    assert (tmp_path / "run" / "report.html").exists()


def test_quick_takes_lengths_from_prompts(tmp_path: Path) -> None:
    prompts = [[*range(96), 200 + number] for number in range(3)]
    (tmp_path / "ids.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    axes, told = quick._of_prompts((tmp_path / "ids.jsonl",), None)
    assert axes == {"tree": "[[96, [1, 1, 1]]]"}
    assert told == "3 prompts, of 97 tokens, with their shared prefixes"
    refused = CliRunner().invoke(cli, ["quick", "--prompts", str(tmp_path / "ids.jsonl"), "--batch", "3"])
    assert refused.exit_code == 2
    assert "--prompts states --n-p, --n-s and --batch" in refused.output


def test_a_closed_output_gives_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "chunkbench", "list", "axes"]
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True, check=False, cwd=tmp_path
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ("unavailable oom", 3),
        ("ok noisy unavailable unsupported oom", 0),
        ("ok incorrect", 3),
        ("error", 3),
        ("crashed ok", 3),
        ("timeout", 3),
    ],
)
def test_failed_cases_or_none_measured_make_the_exit_code_3(statuses: str, code: int) -> None:
    assert run_exit_code(statuses.split()) == code  # type: ignore[arg-type]


def test_messages_name_the_options_that_solve_the_problem() -> None:
    assert explain("plain") == "plain"
    assert explain(RunError("x: taken", remedy="elsewhere")) == "x: taken (--out DIR names another folder)"
    assert explain(RunError("x: damaged")) == "x: damaged"
    assert all(explain(RunError("x", remedy)) != "x" for remedy in get_args(Remedy))


def test_messages_hold_nothing_that_a_terminal_obeys() -> None:
    assert explain("a\x1b[31m\r\x9b\ud800\nb") == "a\ufffd[31m\ufffd\ufffd\ufffd\nb"


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_text("old")
    path.chmod(0o644)
    (tmp_path / "link").symlink_to(path)
    with click.Context(cli, info_name="traces"):
        write_text(tmp_path / "link", "new")
        assert (path.read_text(), (tmp_path / "link").is_symlink()) == ("new", True)
        with pytest.raises(SystemExit):
            write_experiment(path, "title: 5\n")
        with pytest.raises(SystemExit):
            write_text(Path("/dev/full"), "text")
    assert path.read_text() == "new"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["e.yaml", "link"]
