"""Step times from the steps of a serving run."""

from __future__ import annotations

from pathlib import Path

from chunkbench.bench.store import open_run
from chunkbench.run_error import RunError
from chunkbench.workloads.replay.measured import FittedStepTime, TimedStep
from chunkbench.workloads.replay.served_steps import ServedRequest, served_steps
from chunkbench.workloads.serving.result import Measurement, ServingResult


def fitted(directory: str) -> FittedStepTime:
    """Step times fitted to all steps that the servers of a run wrote down. Raises `RunError`."""
    run = open_run(Path(directory))
    rows = [
        step
        for case in run.cases
        if isinstance(case, ServingResult) and case.tree is None and case.prompts == 1
        for measurement in case.measurements
        for step in _steps(measurement, case.n_s or 0)
    ]
    try:
        return FittedStepTime.fit(rows)
    except ValueError as error:
        raise RunError(f"{directory}: no step times can be fitted to this run: {error}") from None


def _steps(measurement: Measurement, shared: int) -> list[TimedStep]:
    server = measurement.server
    if server is None or not server.every_step:
        return []
    requests = [
        ServedRequest(request.sent, request.prompt_tokens or 0, request.cached_tokens or 0, request.tokens)
        for request in measurement.requests
        if request.sent is not None and request.status == "ok"
    ]
    try:
        return served_steps(server.every_step, requests, shared)
    except ValueError:  # its steps do not follow from its requests, as after a preemption
        return []
