"""What the statuses of a run mean for the process that made it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chunkbench.store.facts import Status

FAILED: frozenset[Status] = frozenset({"incorrect", "error", "crashed", "timeout"})


def exit_code(statuses: Iterable[Status]) -> int:
    """3 when a case was incorrect, raised, crashed or overran its time; else 0.

    What a machine cannot do (`unavailable`, `unsupported`, `oom`) and noise are findings, not failures.
    """
    return 3 if any(status in FAILED for status in statuses) else 0
