"""What the implementations of a run say of themselves, asked one by one: a bad adapter costs its own rows alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chunkbench.runner.client import WorkerClient, WorkerCrashed, WorkerError, WorkerTimeout
from chunkbench.runner.ledger import Traits
from chunkbench.store.facts import Status

_LIMIT_S = 120.0
"""For one implementation: importing a large library from a slow disk takes its time."""


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
