"""The run directory: `manifest.json` and `cases.jsonl`. Both hold recorded facts, no computed figures."""

from __future__ import annotations

from chunkbench.bench.store.manifest import Manifest
from chunkbench.bench.store.results import (
    FAILED,
    MEASURED,
    Calibration,
    DecodeResult,
    GpuSampling,
    GpuState,
    Noise,
    Peaks,
    Result,
    Status,
    TimedResult,
)
from chunkbench.bench.store.run_directory import (
    SCHEMA_VERSION,
    TORN,
    WORKER_LOG,
    Run,
    RunWriter,
    latest_run,
    newest_runs,
    open_run,
    open_runs,
    runs_below,
    writing,
)

__all__ = [
    "FAILED",
    "MEASURED",
    "SCHEMA_VERSION",
    "TORN",
    "WORKER_LOG",
    "Calibration",
    "DecodeResult",
    "GpuSampling",
    "GpuState",
    "Manifest",
    "Noise",
    "Peaks",
    "Result",
    "Run",
    "RunWriter",
    "Status",
    "TimedResult",
    "latest_run",
    "newest_runs",
    "open_run",
    "open_runs",
    "runs_below",
    "writing",
]
