"""Asks the implementations of a run for their traits, one by one, so that a bad adapter costs only its own results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chunkbench.bench.runner.client import WorkerClient, WorkerCrashed, WorkerError, WorkerTimeout
from chunkbench.bench.store.results import Status

_LIMIT_S = 120.0
"""Time limit for one implementation, in seconds: importing a large library from a slow disk is slow."""


@dataclass(frozen=True)
class Traits:
    """The properties of an implementation that a worker reports."""

    label: str
    ok: bool
    reason: str = ""
    remedy: str = ""
    status: Status = "unavailable"
    """Status of this implementation's results, if `ok` is false."""
    shares_storage: bool = False
    reads_shared_once: bool = False
    isa: str | None = None
    package_version: str | None = None
    note: str = ""
    style: Mapping[str, Any] = field(default_factory=dict)
    """How reports show the implementation (`chunkbench.bench.experiment.terms`). If empty, the default style is
    used."""

    def refusal(self) -> str:
        return f"{self.reason}: {self.remedy}" if self.remedy else self.reason


def survey(
    implementations: Sequence[str], device: str, start: Callable[[], WorkerClient]
) -> tuple[WorkerClient, dict[str, Traits]]:
    """Start a worker and ask it for the traits of each implementation. `start` also replaces a lost worker."""
    worker = start()
    traits: dict[str, Traits] = {}

    def refuse(name: str, status: Status, error: Exception) -> None:
        traits[name] = Traits(name, ok=False, reason=f"in survey: {error}", status=status)

    try:
        for name in implementations:
            try:
                reply = worker.ask("survey", _LIMIT_S, implementations=[name], device=device)
                traits[name] = Traits(**reply[name])
            except WorkerError as error:
                refuse(name, "oom" if error.kind == "oom" else "error", error)
            except (WorkerCrashed, WorkerTimeout) as error:
                refuse(name, "timeout" if isinstance(error, WorkerTimeout) else error.status, error)
                worker.kill()
                worker = start()
    except BaseException:
        worker.kill()
        raise
    return worker, traits
