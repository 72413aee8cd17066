"""Is this revision slower than another one? Both are measured in turns on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import Distribution, distributions
from pathlib import Path
from time import monotonic

from chunkbench.baselines.registry import GROUP
from chunkbench.environment.revision import PROJECT
from chunkbench.experiment import TimedExperiment
from chunkbench.regression.build import Build, KeptPackage, copy_ours, copy_packages, package_folder, seal_build
from chunkbench.regression.compare import Options
from chunkbench.regression.job import Job, Repeats
from chunkbench.regression.packages import normalised, packages_of
from chunkbench.regression.paired import Turns
from chunkbench.regression.remeasure import GateResult
from chunkbench.regression.revision_build import Revision, built_revision, built_working_tree
from chunkbench.regression.side_build import SideBuild, entry_points_of, installed_build
from chunkbench.regression.sides import make_sides, measure_and_compare, with_sources
from chunkbench.runner.run import sigterm_as_interrupt
from chunkbench.store import RunError, writing


def regress(job: Job, project: Path, ref: str, options: Options, repeats: Repeats) -> GateResult:
    """Build the revision `ref` of a project, measure it and the present one in turns, and measure again what looks
    changed.

    `project` is the top folder of a git repository: ChunkBench's own, whose present revision is the one that runs, or
    one with implementations of its own, whose working tree is built too. Raises `RunError` and `NothingToCompare`.
    """
    with writing(job.out):
        job.out.mkdir(parents=True, exist_ok=True)
    sides = _own_sides if project.resolve() == PROJECT else _project_sides
    try:
        with sigterm_as_interrupt(), sides(job, project.resolve(), ref) as (base, head):
            began = monotonic()  # how long a build takes must not cost a re-measurement
            turns = Turns(job, *make_sides(job, base, head))
            return with_sources(measure_and_compare(turns, options, repeats, began), base, head)
    except KeyboardInterrupt:
        return GateResult(None, interrupted=True)


def default_experiment(project: Path) -> str:
    """The experiment that measures a project if none is named. Raises `RunError` if it has none."""
    if project.resolve() == PROJECT:
        return "gate"
    if not (project / "gate.yaml").is_file():
        raise RunError(f"{project}: has no gate.yaml; name the EXPERIMENT that measures its implementations")
    return str(project / "gate.yaml")


@contextmanager
def _own_sides(job: Job, project: Path, ref: str) -> Iterator[tuple[SideBuild, SideBuild]]:
    """Two revisions of ChunkBench. Both have the packages of other implementations as they are installed."""
    with (
        built_revision(project, ref, job.out / "build.log") as revision,
        installed_build(job.experiment) as head,
    ):
        packages = copy_packages(revision.folder, packages_of(entry_points_of(job.experiment)))
        yield SideBuild(seal_build(revision.folder, packages), f"revision {ref}", _manifest(revision)), head


@contextmanager
def _project_sides(job: Job, project: Path, ref: str) -> Iterator[tuple[SideBuild, SideBuild]]:
    """Two revisions of another project, both with the ChunkBench that runs."""
    log = job.out / "build.log"
    with built_revision(project, ref, log) as base, built_working_tree(project, log) as head:
        yield (
            SideBuild(_with_ours(job.experiment, base), f"revision {ref}", _manifest(base)),
            SideBuild(_with_ours(job.experiment, head), "the working tree", _manifest(head)),
        )


def _manifest(revision: Revision) -> dict[str, object]:
    return {"git": {"commit": revision.commit, "dirty": revision.dirty}}


def _with_ours(experiment: TimedExperiment, revision: Revision) -> Build:
    """The build of a project's revision, with the ChunkBench that runs, and with the packages of other implementations.

    Raises `RunError` if the experiment measures nothing of the project.
    """
    (project,) = distributions(path=[str(revision.folder)])
    kept = _built_package(project)
    if kept.name == "chunkbench":
        raise RunError(f"this ChunkBench is not the installed one, which is in {PROJECT}; install it (make setup)")
    if not set(kept.provides).intersection(experiment.implementations):
        raise RunError(
            f"the experiment {experiment.name} measures nothing of this project, which registers "
            f"{', '.join(kept.provides) or 'no implementation'}; "
            "name an experiment that lists one of its implementations"
        )
    others = packages_of(entry_points_of(experiment), without=[kept.name])
    build = revision.folder.with_name("side")
    copy_ours(build)
    packages = copy_packages(build, others)
    (build / kept.folder).parent.mkdir(exist_ok=True)
    revision.folder.rename(build / kept.folder)
    return seal_build(build, (kept, *packages))


def _built_package(package: Distribution) -> KeptPackage:
    provides = tuple(sorted(point.name for point in package.entry_points if point.group == GROUP))
    name = normalised(package.name)
    root = package_folder(name)  # pip puts modules and metadata side by side
    return KeptPackage(name=name, version=package.version, install="built", provides=provides, roots=(root,))
