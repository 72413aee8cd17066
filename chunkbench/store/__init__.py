"""The run directory: `manifest.json` and an append-only `cases.jsonl`, facts only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from chunkbench.store.facts import MEASURED, CaseFacts, GpuState, Noise, Peaks, Sampling, Status, Yardsticks
from chunkbench.store.run_directory import (
    SCHEMA_VERSION,
    Run,
    RunError,
    RunWriter,
    latest_run,
    newest_runs,
    open_run,
    open_runs,
    writing,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "MEASURED",
    "SCHEMA_VERSION",
    "CaseFacts",
    "GpuState",
    "Noise",
    "Peaks",
    "Run",
    "RunError",
    "RunWriter",
    "Sampling",
    "Status",
    "Yardsticks",
    "latest_run",
    "load",
    "newest_runs",
    "open_run",
    "open_runs",
    "writing",
]


def load(run: Path | str) -> pd.DataFrame:
    """A run's cases as a table: one row per case, every fact and everything derived from them.

    `run` is a run directory or its `cases.jsonl`. Raises `RunError` when there is nothing to read.
    """
    from chunkbench.analysis.derive import frame

    opened = open_run(run)
    experiment = opened.manifest.get("experiment", {})
    return frame(
        opened.cases,
        baseline=experiment.get("baseline", "chunk_attn"),
        confidence=experiment.get("confidence", 0.95),
    )
