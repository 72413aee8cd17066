"""Is this revision slower than another? Both are measured in turns on this machine."""

from __future__ import annotations

from pathlib import Path

from chunkbench.experiment import TimedExperiment
from chunkbench.regression.compare import Options
from chunkbench.regression.paired import Turns
from chunkbench.regression.remeasure import Gated
from chunkbench.regression.revision_build import built
from chunkbench.regression.sides import compared, sides
from chunkbench.runner.run import Listener, sigterm_as_interrupt
from chunkbench.runner.target import Target
from chunkbench.store import writing


def regress(
    experiment: TimedExperiment,
    target: Target,
    ref: str,
    options: Options,
    processes: int,
    again: int,
    out: Path,
    listener: Listener,
) -> Gated:
    """Build `ref`, measure it and this revision in turns into `out`, then again, up to `again` times, what looks
    changed. Raises `RunError`, and `NothingToCompare`."""
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    try:
        with sigterm_as_interrupt(), built(ref, out / "build.log") as revision:
            git = {"git": {"commit": revision.commit, "dirty": False}}
            with sides(experiment, target, out, revision.build, f"revision {ref}", git) as both:
                return compared(Turns(experiment, target, *both, out, listener), options, processes, again)
    except KeyboardInterrupt:
        return Gated(None, interrupted=True)
