"""Ranks that a launcher starts: `chunkbench run` in several processes, with the variables that `torchrun` sets."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "chunkbench", "run"]
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")

EXPERIMENT = """\
kind: ring
dtype: float32
budget: 1s
case_limit: 30s
rounds: 3
implementations: [{implementations}]
baseline: {baseline}
sweep:
  - {{n_p: {tokens}, heads: 2, head_dim: 32, ranks: {ranks}, threads: 1}}
"""

Start = Callable[..., subprocess.Popen[str]]


def write(folder: Path, ranks: int, *implementations: str, tokens: int = 256) -> Path:
    """An experiment of one point; the first implementation is the baseline."""
    path, names = folder / "ranks.yaml", ", ".join(implementations)
    path.write_text(EXPERIMENT.format(ranks=ranks, tokens=tokens, implementations=names, baseline=implementations[0]))
    return path


@contextmanager
def starting(spec: Path, size: int, host: str, port: int) -> Iterator[Start]:
    """Starts `chunkbench run` as a rank, with more words and variables, behind the words of another program.

    What was started is killed at the end, if it has not ended.
    """
    running: list[subprocess.Popen[str]] = []

    def start(
        rank: int, *words: str, variables: Mapping[str, str] | None = None, behind: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        of_rank = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": host, "MASTER_PORT": port}
        kept = {name: value for name, value in os.environ.items() if name not in NAMES}
        process = subprocess.Popen(
            [*behind, *COMMAND, str(spec), "-q", *words],
            env=kept | {name: str(value) for name, value in of_rank.items()} | dict(variables or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
        )
        running.append(process)
        return process

    try:
        yield start
    finally:
        for process in running:
            process.kill()
            process.communicate()


def ended(process: subprocess.Popen[str], within_s: float = 60) -> tuple[int, str]:
    """The exit code and what was printed. Raises TimeoutExpired if a process goes on."""
    printed, _ = process.communicate(timeout=within_s)
    return process.returncode, printed
