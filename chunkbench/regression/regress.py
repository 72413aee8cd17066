"""Is this revision slower than another one? Both are measured in turns on this machine."""

from __future__ import annotations

from chunkbench.regression.compare import Options
from chunkbench.regression.job import Job, Repeats
from chunkbench.regression.paired import Turns
from chunkbench.regression.remeasure import GateResult
from chunkbench.regression.revision_build import built_revision
from chunkbench.regression.sides import BaseBuild, measure_and_compare, sides
from chunkbench.runner.run import sigterm_as_interrupt
from chunkbench.store import writing


def regress(job: Job, ref: str, options: Options, repeats: Repeats) -> GateResult:
    """Build the revision `ref`, measure it and this revision in turns, and measure again what looks changed.

    Raises `RunError` and `NothingToCompare`.
    """
    with writing(job.out):
        job.out.mkdir(parents=True, exist_ok=True)
    try:
        with sigterm_as_interrupt(), built_revision(ref, job.out / "build.log") as revision:
            git = {"git": {"commit": revision.commit, "dirty": False}}
            with sides(job, BaseBuild(revision.folder, f"revision {ref}", git)) as (base, head):
                return measure_and_compare(Turns(job, base, head), options, repeats)
    except KeyboardInterrupt:
        return GateResult(None, interrupted=True)
