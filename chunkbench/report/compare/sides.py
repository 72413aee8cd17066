"""Defines BASE and HEAD of a comparison: each has a Python interpreter, and may have packages of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from chunkbench.bench.environment.revision import PROJECT
from chunkbench.bench.experiment import TimedExperiment
from chunkbench.bench.experiment.point import Point
from chunkbench.bench.registry import GROUP
from chunkbench.bench.runner.client import LOST, WorkerCrashed, WorkerProcess, WorkerTimeout
from chunkbench.report.compare.builds import Build, built_revision, built_working_tree
from chunkbench.run_error import RunError

# The first statements draw where later objects begin within a page, and within Python's own pools. Otherwise the length
# of a build's path decides that, in all processes of a side alike, and makes code that runs in Python or in PyTorch's
# dispatcher up to 8% slower. The finder comes before those of editable installs, which would find the installed
# packages.
_LAUNCH = """\
import ctypes, random, runpy, sys
from importlib.machinery import PathFinder
ctypes.CDLL(None).malloc((1 << 20) + random.randrange(1 << 16))
kept = [bytes(size) for size in range(0, 480, 16) for _ in range(random.randrange(256))]
kept += [kind() for kind in (object, float) for _ in range(random.randrange(256))]
folder = sys.argv.pop(1)

class InFolder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        places = [folder] if path is None else [place for place in path if place.startswith(folder)]
        return PathFinder.find_spec(name, places, target) if places else None

if folder:
    sys.meta_path.insert(0, InFolder)
    sys.path.insert(0, folder)
runpy.run_module("chunkbench.worker", run_name="__main__", alter_sys=True)
"""
_FACTS = """\
import json
from chunkbench.bench.environment import git_state, machine_id, read_environment
from chunkbench.version import __version__
facts = read_environment().model_dump(mode="json")
machines = {machine_id(facts).id: facts}
print(json.dumps({"chunkbench_version": __version__, "git": git_state(), "machines": machines}))
"""
_FACTS_LIMIT_S = 120.0


@dataclass(frozen=True)
class Side:
    """BASE or HEAD of a comparison."""

    name: str
    """`base` or `head`."""
    title: str
    """Name of the side in error messages."""
    python: str = sys.executable
    """Path of the Python interpreter that measures the side."""
    folder: Path | None = None
    """Folder with packages that the side imports instead of the installed ones."""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """Values that the manifests of the side's runs get."""
    own: bool = False
    """Whether the interpreter ignores PYTHONPATH, so that it imports only its own packages."""
    program: Sequence[str] = ()
    """Path and arguments of a script that runs instead of the worker's program."""

    def start(self, log: Path, experiment: TimedExperiment) -> WorkerProcess:
        """Start the parent process of a side. It imports the implementations; later it forks the processes that
        measure. Its errors are written to `log`. Raises `RunError`."""
        try:
            return preloaded(lambda: self._worker(log, experiment), experiment)
        except LOST as error:
            raise RunError(f"{self.title}: cannot be measured: a worker does not start: {error}; see {log}") from None

    def _worker(self, log: Path, experiment: TimedExperiment) -> WorkerProcess:
        folder = self.folder.resolve() if self.folder is not None else None
        command = [self.python, *(self.program or ("-c", _LAUNCH, str(folder or "")))]
        # PyTorch stores extensions that it compiles at first use under their name. With one folder for both sides, each
        # side would overwrite the extensions of the other.
        extensions = {"TORCH_EXTENSIONS_DIR": f"{log.parent.resolve()}/torch-extensions-{self.name}"}
        environment = _own_packages() if self.own else dict(os.environ)
        worker = WorkerProcess(log, experiment.kind, experiment.pages, command, environment | extensions)
        if folder and (folder / "chunkbench").is_dir() and not worker.package.is_relative_to(folder):
            worker.kill()
            raise RunError(f"{self.title}: its worker imports ChunkBench from {worker.package}, not from its build")
        return worker


@contextmanager
def revisions(project: Path, ref: str, experiment: TimedExperiment, log: Path) -> Iterator[tuple[Side, Side]]:
    """Build the revision `ref` of a project as BASE and its working tree as HEAD. The output of the builds is written
    to `log`.

    Raises `RunError` if a build fails, or if the experiment names no implementation of the project.
    """
    with built_revision(project, ref, log) as base, built_working_tree(project, log) as head:
        if project.resolve() != PROJECT:
            _check_measures(experiment, head)
        yield _built("base", f"revision {ref}", base), _built("head", "the working tree", head)


def _own_packages() -> dict[str, str]:
    """The environment in which an interpreter imports its own packages alone."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def interpreters(python: str, say: Callable[[str], None]) -> tuple[Side, Side]:
    """Make BASE from the interpreter `python` and HEAD from this one. `python` must have ChunkBench and the project
    installed. If PYTHONPATH is set, both ignore it, and `say` gets a warning. Raises `RunError`."""
    try:
        done = subprocess.run(
            [python, "-P", "-c", _FACTS],
            capture_output=True,
            text=True,
            check=False,
            timeout=_FACTS_LIMIT_S,
            env=_own_packages(),
        )
        facts = json.loads(done.stdout) if done.returncode == 0 else None
        problem = done.stderr.strip().rsplit("\n", 1)[-1]
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        facts, problem = None, str(error)
    if facts is None:
        raise RunError(f"{python}: is no Python interpreter with ChunkBench: {problem}")
    if "PYTHONPATH" in os.environ:
        say("PYTHONPATH is left out: with it, both interpreters would import the same packages instead of their own")
    return Side("base", python, python, manifest=facts, own=True), Side("head", sys.executable, own=True)


def _built(name: str, title: str, build: Build) -> Side:
    manifest = {"git": {"commit": build.commit, "dirty": build.dirty}}
    return Side(name, title, folder=build.folder, manifest=manifest)


def _check_measures(experiment: TimedExperiment, build: Build) -> None:
    points = [point for package in distributions(path=[str(build.folder)]) for point in package.entry_points]
    provided = sorted({point.name for point in points if point.group == GROUP})
    if not set(provided).intersection(experiment.implementations):
        raise RunError(
            f"the experiment {experiment.name} measures nothing of this project, which registers "
            f"{', '.join(provided) or 'no implementation'}; "
            "name an experiment that lists one of its implementations"
        )


_IMPORT_LIMIT_S = 300.0


def preloaded(start: Callable[[], WorkerProcess], experiment: TimedExperiment) -> WorkerProcess:
    """Start a worker with `start`, and import the experiment's implementations in it.

    An implementation that crashes the worker is left out. It will crash again in the process that measures it, and its
    row will report that. Raises `WorkerError` and the errors of `start`.
    """
    names = list(experiment.implementations)
    while True:
        worker = start()
        try:
            crashing = _import(worker, names)
            if crashing is None:
                return worker
        except BaseException:
            worker.kill()
            raise
        worker.kill()
        names.remove(crashing)


def warm(worker: WorkerProcess, seed: int, point: Point, sweep_file: str) -> None:
    """Let a parent process make the data that its children only read: inputs with the dtype and device of `point`.

    `sweep_file`: path of the memory that children sweep to make caches cold; if empty, the parent allocates it. Raises
    `LOST`.
    """
    arguments = {"seed": seed, "dtype": point.dtype, "device": point.device, "sweep_file": sweep_file}
    worker.ask("warm", _IMPORT_LIMIT_S, **arguments)


def _import(worker: WorkerProcess, names: Sequence[str]) -> str | None:
    """Import the implementations; return the one that crashed the worker, if one did."""
    for name in names:
        try:
            worker.ask("preload", _IMPORT_LIMIT_S, implementations=[name])
        except (WorkerCrashed, WorkerTimeout):
            return name
    return None
