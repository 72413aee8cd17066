"""Made-up results of rings, with small numbers whose figures can be computed by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chunkbench.bench.store.results import Status
from chunkbench.workloads.ring.methods import CHOICES
from chunkbench.workloads.ring.result import Activity, RankFacts, RankTimes, RingPoint, RingResult

ROUNDS = (1.0, 1.25, 0.8)
"""How much longer each round took than the first one."""


def ring_result(
    implementation: str,
    seconds: Sequence[float] = (0.1, 0.2),
    *,
    compute: float = 0.5,
    transfer: float = 0.4,
    wait: float = 0.1,
    pairs: Sequence[int] = (100, 300),
    sent: int | None = 2_000_000,
    peak: int | None = 3_000_000,
    status: Status = "ok",
    reason: str = "",
    rates: tuple[float | None, float | None] = (4e10, 2e9),
    hosts: int = 1,
    **axes: Any,
) -> RingResult:
    """A result of some ranks: the seconds of each, and shares of them; sent and peak bytes are the same for all."""
    given = {"device": "cpu", "dtype": "float32", "n_p": 4096, "heads": 8, "ranks": len(seconds)} | axes
    point = RingPoint.model_validate(RingPoint.completed(given))

    def times(total: float) -> RankTimes:
        return RankTimes(
            total_s=total, compute_s=compute * total, wait_s=wait * total, transfer_s=transfer * total if sent else 0.0
        )

    moves: tuple[Activity, ...] = (("transfer", 0.0, 0.04), ("wait", 0.05, 0.06)) if sent else ()
    timeline: tuple[Activity, ...] = (("compute", 0.0, 0.05), *moves)
    measured = status in ("ok", "noisy")
    return RingResult(
        **dict(point),
        key=f"{implementation} {sorted(given.items())}",
        experiment="made",
        implementation=implementation,
        label=CHOICES[implementation].label,
        status=status,
        reason=reason,
        times=tuple(tuple(times(longer * total) for total in seconds) for longer in ROUNDS) if measured else (),
        ranks_facts=tuple(RankFacts(sent_bytes=sent, peak_bytes=peak, pairs=count) for count in pairs)
        if measured
        else (),
        timeline=tuple(timeline for _ in seconds) if measured else (),
        flops_per_s=rates[0],
        bytes_per_s=rates[1],
        max_error=2.5e-7 if measured else None,
        tolerance=1e-5,
        hosts=hosts,
    )


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
