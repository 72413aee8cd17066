"""What the implementations of a run say of themselves, asked one by one: a bad adapter costs its own rows alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chunkbench.runner.client import WorkerClient, WorkerCrashed, WorkerError, WorkerTimeout
from chunkbench.store.facts import Status

_LIMIT_S = 120.0
"""For one implementation: importing a large library from a slow disk takes its time."""


@dataclass(frozen=True)
class Traits:
    """What a worker says of an implementation."""

    label: str
    ok: bool
    reason: str = ""
    remedy: str = ""
    status: Status = "unavailable"
    """Of its rows, unless `ok`."""
    shares_storage: bool = False
    reads_shared_once: bool = False
    isa: str | None = None
    package_version: str | None = None
    note: str = ""
    look: Mapping[str, Any] = field(default_factory=dict)
    """How it is shown (`chunkbench.experiment.look`); workers of older versions do not say."""

    def refusal(self) -> str:
        """Reason and remedy as one text."""
        return f"{self.reason}: {self.remedy}" if self.remedy else self.reason


def survey(
    implementations: Sequence[str], device: str, start: Callable[[], WorkerClient], limit_s: float = _LIMIT_S
) -> tuple[WorkerClient, dict[str, Traits]]:
    """A worker that has answered, and what is known of each implementation."""
    worker = start()
    traits: dict[str, Traits] = {}

    def refuse(name: str, status: Status, error: Exception) -> None:
        traits[name] = Traits(name, ok=False, reason=f"in survey: {error}", status=status)

    try:
        for name in implementations:
            try:
                reply = worker.ask("survey", limit_s, implementations=[name], device=device)
                traits[name] = Traits(**reply[name])
            except WorkerError as error:
                refuse(name, "error", error)
            except (WorkerCrashed, WorkerTimeout) as error:
                refuse(name, "timeout" if isinstance(error, WorkerTimeout) else "crashed", error)
                worker.kill()
                worker = start()
    except BaseException:
        worker.kill()
        raise
    return worker, traits
