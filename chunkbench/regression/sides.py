"""BASE, the build of another revision, against HEAD, this revision: measured in turns, compared, measured again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from chunkbench.regression.compare import Options, compare
from chunkbench.regression.job import Job, Repeats
from chunkbench.regression.paired import Side, Turns
from chunkbench.regression.preload import preloaded
from chunkbench.regression.remeasure import GateResult, remeasure_changed
from chunkbench.regression.side_build import SideBuild
from chunkbench.regression.verdicts import Comparison, Source
from chunkbench.runner.client import LOST, WorkerProcess
from chunkbench.store import Run, RunError


def make_sides(job: Job, base: SideBuild, head: SideBuild) -> tuple[Side, Side]:
    """Both sides, ready to start parents. They differ in the folder of their build and in nothing else."""
    return _side(job, "base", base), _side(job, "head", head)


def _side(job: Job, name: str, side: SideBuild) -> Side:
    log, experiment = job.out / f"worker-{name}.log", job.experiment

    def start() -> WorkerProcess:
        try:
            return preloaded(lambda: side.start(log, experiment.kind, experiment.pages), experiment)
        except LOST as error:
            raise RunError(
                f"{side.name}: cannot be measured in turns: a worker does not start: {error}; see {log}. If its "
                "version is too old, record it with its own version and compare the recordings (chunkbench compare)"
            ) from None

    return Side(name, start, side.manifest)


def measure_and_compare(
    turns: Turns,
    options: Options,
    repeats: Repeats,
    began: float,
    adjust_base: Callable[[list[Run]], None] = lambda _: None,
) -> GateResult:
    """Measure both sides, compare them, and measure again what looks changed.

    `began` is when the gate's time began to count (`time.monotonic`). `adjust_base` may change the first runs of BASE
    before they are compared. Raises `RunError`, `NothingToCompare`.
    """
    first = turns.measure(repeats.processes)
    if not first.head:
        return GateResult(None, first.interrupted)
    adjust_base(first.base)
    base, head_again = list(first.base), []

    def measure(number: int, changed: frozenset[str]) -> bool:
        pairs = turns.measure(repeats.processes, changed, f"again-{number}")
        if pairs.head:
            base.extend(pairs.base)
            head_again.append(pairs.head)
        return pairs.interrupted

    def compare_all() -> Comparison:
        comparison = compare(base, first.head, options, head_again)
        side = comparison.base.model_copy(update={"path": str(first.base[0].path.parent), "processes": len(first.base)})
        return comparison.model_copy(update={"base": side})

    return remeasure_changed(
        compare_all, measure, repeats.again, options.threshold, first.interrupted, began, turns.budget_s
    )


def with_sources(result: GateResult, base: SideBuild, head: SideBuild) -> GateResult:
    """The result, with where the code of both sides came from."""
    if result.comparison is None:
        return result
    sources = tuple(_sources(base, head))
    return GateResult(result.comparison.model_copy(update={"sources": sources}), result.interrupted)


def _sources(base: SideBuild, head: SideBuild) -> Iterator[Source]:
    sides = [_packages(side) for side in (base, head)]
    for name in dict.fromkeys(name for packages in sides for name in packages):
        texts = [packages.get(name, ("not there", "")) for packages in sides]
        same = bool(texts[0][1]) and texts[0][1] == texts[1][1]
        yield Source(package=name, base=texts[0][0], head=texts[1][0], same=same)


def _packages(side: SideBuild) -> dict[str, tuple[str, str]]:
    """Package -> what to say about it, and the hash of its files."""
    facts = side.build.facts
    ours = facts.digest("chunkbench")
    packages = {"chunkbench": (f"files {ours[:8]}" if ours else "from before files had hashes", ours)}
    for package in facts.packages:
        digest = facts.digest(package.folder)
        packages[package.name] = (f"{package.version}, {package.install}, files {digest[:8]}", digest)
    return packages
