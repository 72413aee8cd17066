"""The command itself: what ends it early is one line and an exit code, never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from chunkbench.cli import main as module


def ending(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    """Exit code of a command that raises this."""

    @click.command()
    def failing() -> None:
        raise error

    monkeypatch.setattr(module, "cli", failing)
    monkeypatch.setattr(sys, "argv", ["chunkbench"])
    with pytest.raises(SystemExit) as left:
        module.main()
    code = left.value.code
    assert isinstance(code, int)
    return code


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    full = OSError(28, "No space left on device", "cases.jsonl")
    assert ending(monkeypatch, full) == 2
    assert capsys.readouterr().err.splitlines() == ["chunkbench: [Errno 28] No space left on device: 'cases.jsonl'"]


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert ending(monkeypatch, KeyboardInterrupt()) == 130
    assert capsys.readouterr().err.strip() == "interrupted"


def test_an_interrupt_while_modules_are_imported_is_130_too(tmp_path: Path) -> None:
    # Stands in for whatever is being imported when Ctrl-C comes.
    (tmp_path / "pydantic.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    root = Path(module.__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", "from chunkbench.cli.main import main; main()", "validate", "smoke"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"},
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
        check=False,
    )
    assert ended.returncode == 130
    assert ended.stderr.strip() == "interrupted"
