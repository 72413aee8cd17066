"""Tiny runs of each kind as real processes, which carry a mark by which all that they started is found."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from chunkbench import workloads
from chunkbench.bench.store import Run, open_run
from tests.torture.harm import library

MARK = "CHUNKBENCH_TORTURE"
LIMIT_S = 240.0
CONFIG = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "model_type": "llama",
}  # fmt: skip
_TIMED = "dtype: float32\nbudget: 800ms\ncase_limit: 30s\nmax_rounds: 3\n"
EXPERIMENTS = {
    "memory": "kind: memory\nimplementations: [naive]\nbaseline: naive\n"
    "defaults: {heads: 2, head_dim: 16, n_c: 1, batch_size: 2}\nsweep:\n  - {n_p: [16, 32, 48], n_s: 16}\n",
    "replay": "kind: replay\nrequests: 12\narrival_seeds: 2\nbudget: 1m\nimplementations: [paged, prefix_tree]\n"
    "defaults: {n_c: 8, memory: 60000, n_p: 256}\nsweep:\n  - {n_s: 64, rate: [60, 120, 180]}\n",
    "decode": f"{_TIMED}implementations: [naive, chunk_attn]\n"
    "defaults: {n_c: 2, batch_size: 2, heads: 2, head_dim: 16, chunk_size: 16, threads: 1}\n"
    "sweep:\n  - {n_p: [16, 32, 48], n_s: 16}\n",
    "layer": f"kind: modules\n{_TIMED}defaults: {{model: config.json, n_p: 16, n_c: 2, threads: 1}}\n"
    "sweep:\n  - batch_size: [1, 2, 3]\n",
    "ring": "kind: ring\ndtype: float32\nbudget: 1s\ncase_limit: 30s\nrounds: 3\nimplementations: [one_process, ring]\n"
    "defaults: {ranks: 2, heads: 1, head_dim: 16, threads: 1}\nsweep:\n  - {n_p: [64, 96, 128]}\n",
    "serving": "kind: serving\nimplementations: [chunk_llama]\ndtype: float32\nbudget: 10m\nrequests: 6\n"
    "arrival_seeds: 1\nvocabulary: 100\n"
    "defaults: {model: config.json, n_p: 32, n_s: 16, n_c: 8, batch_size: 2}\nsweep:\n  - {rate: [300, 400, 500]}\n",
}
"""Kind of run -> its experiment, of `POINTS` points."""
POINTS = 3
ROWS = {"memory": 1, "replay": 2, "decode": 2, "layer": 3, "ring": 2, "serving": 1}
"""Rows of a point."""


def kinds() -> list[str]:
    """The kinds of runs with several processes that this environment has the packages for."""
    served = all(importlib.util.find_spec(name) for name in ("starlette", "uvicorn", "transformers"))
    return [kind for kind in EXPERIMENTS if kind != "memory" and (kind != "serving" or served)]


class TinyRun:
    """A run of a kind in a folder, and the processes that it started."""

    def __init__(self, kind: str, folder: Path, out: Path | None = None) -> None:
        """`out`: the run directory."""
        self.kind, self.folder, self.out = kind, folder, out or folder / "run"
        self.spec = folder / f"{kind}.yaml"
        self.spec.write_text(f"name: {kind}\n{EXPERIMENTS[kind]}")
        (folder / "config.json").write_text(json.dumps(CONFIG))
        (folder / "tmp").mkdir(exist_ok=True)
        self.close_fails = 0
        """Which call of `close` for a file of the run fails; 0: none."""
        self.driver: subprocess.Popen[bytes]

    def start(self, *more: str) -> None:
        """Start the command; it resumes if the directory holds a run."""
        resume = ["--resume"] if (self.out / "manifest.json").exists() else []
        words = [sys.executable, "-m", "chunkbench", "run", str(self.spec), "--out", str(self.out), "-q"]
        environment = os.environ | {MARK: str(self.folder), "TMPDIR": str(self.folder / "tmp")}
        if self.close_fails:
            environment |= {"LD_PRELOAD": str(library()), "TORTURE_FOLDER": str(self.out)}
            environment |= {"TORTURE_CLOSE": str(self.close_fails)}
        with (self.folder / "errors.txt").open("wb") as errors:
            self.driver = subprocess.Popen(
                [*words, *resume, *more], stdout=subprocess.DEVNULL, stderr=errors, cwd=self.folder, env=environment
            )

    def end(self) -> int:
        """Wait until the command ends. Returns its exit code."""
        try:
            return self.driver.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.kind}: the run did not end within {LIMIT_S:.0f} s") from None

    @contextlib.contextmanager
    def cleaned(self) -> Iterator[None]:
        """Leave nothing behind, whatever fails."""
        try:
            yield
        finally:
            for process in self.processes():
                with contextlib.suppress(psutil.Error):
                    process.kill()

    def complete(self, *more: str) -> int:
        """Run the command from its start to its end."""
        self.start(*more)
        return self.end()

    @property
    def errors(self) -> str:
        """What the last command said."""
        return (self.folder / "errors.txt").read_text(errors="replace")

    def lines(self) -> list[bytes]:
        """The recorded lines, without an incomplete one."""
        return whole_lines(self.out)

    def finished(self) -> list[bytes]:
        """The lines of points that are on disk as a whole."""
        lines = self.lines()
        return lines[: len(lines) // ROWS[self.kind] * ROWS[self.kind]]

    def processes(self) -> list[psutil.Process]:
        """All live processes with the mark, the driver among them."""
        mark = f"{MARK}={self.folder}".encode()
        return [psutil.Process(pid) for pid in psutil.pids() if mark in _environment(pid) and _lives(pid)]

    def check_complete(self, finished: list[bytes]) -> None:
        """The run has all points, each once, and those that were finished earlier unchanged."""
        workloads.register()
        check_complete(self.out, POINTS * ROWS[self.kind], finished)

    def check_released(self, ports: set[int], limit_s: float = 15.0) -> None:
        """Nothing of the run lives, holds the lock, or listens."""
        end = time.monotonic() + limit_s
        while (left := self.processes()) and time.monotonic() < end:
            time.sleep(0.05)
        assert not left, f"{self.kind}: left over: {[' '.join(_command(process)) for process in left]}"
        if (self.out / ".lock").exists():
            with (self.out / ".lock").open() as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise AssertionError(f"{self.kind}: the lock is held") from None
        # A process that ends loses its environment, and with it the mark, before its ports are closed.
        while (open_ports := ports & listening(psutil)) and time.monotonic() < end:
            time.sleep(0.05)
        assert not open_ports, f"{self.kind}: ports still open: {open_ports}"

    def ports(self) -> set[int]:
        """The ports on which its processes listen."""
        found = set()
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                found |= listening(process)
        return found


def whole_lines(out: Path) -> list[bytes]:
    """The recorded lines of a run, without an incomplete one."""
    cases = out / "cases.jsonl"
    lines = cases.read_bytes().splitlines(keepends=True) if cases.exists() else []
    return [line for line in lines if line.endswith(b"\n")]


def check_complete(out: Path, rows: int, finished: list[bytes]) -> Run:
    """A run has so many rows, each once, and those that were finished earlier unchanged. Returns it."""
    lines, run = whole_lines(out), open_run(out)
    kind = run.manifest.experiment.name
    assert not run.torn, f"{kind}: the last line is cut"
    assert not run.manifest.interrupted, f"{kind}: the run is not complete"
    assert len(lines) == rows, f"{kind}: {len(lines)} rows"
    assert len({case.key for case in run.cases}) == len(lines), f"{kind}: a row is there twice"
    for line in finished:
        assert lines.count(line) == 1, f"{kind}: a finished row changed: {line[:300]!r}"
    return run


def listening(who: Any) -> set[int]:
    """The ports on which a process, or with `psutil` itself any process, listens."""
    return {c.laddr.port for c in who.net_connections("tcp") if c.status == psutil.CONN_LISTEN}


def _environment(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []


def _lives(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []
