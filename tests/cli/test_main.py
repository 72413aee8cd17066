"""The command `chunkbench`: an error prints one line and sets the exit code, without a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from chunkbench.cli import main as module


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
