"""The build that a side of a comparison measures, and how its workers start: for both sides in the same way."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from chunkbench import workload
from chunkbench.experiment import TimedExperiment
from chunkbench.experiment.terms import Pages
from chunkbench.regression.build import Build, copy_build, new_build_folder
from chunkbench.regression.packages import packages_of
from chunkbench.runner.client import LOST, WorkerProcess
from chunkbench.runner.survey import survey
from chunkbench.store import RunError


@dataclass(frozen=True)
class SideBuild:
    """The build that one side measures."""

    build: Build
    name: str
    """What messages call it."""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """What the manifests of its runs say about it: commit and version."""
    program: Sequence[str] = ()
    """A script, with its arguments, that takes the place of the worker's program."""

    def start(self, log: Path, kind: str, pages: Pages) -> WorkerProcess:
        """Start a worker from the build, with such pages; its errors go to `log`. Raises `LOST` and `RunError`."""
        command = self.build.command(self.program)
        worker = WorkerProcess(log, kind, pages, command, self._environment())
        if not worker.package.is_relative_to(self.build.folder.resolve()):
            worker.kill()
            raise RunError(f"{self.name}: its worker imports the package from {worker.package}, not from its build")
        return worker

    def _environment(self) -> dict[str, str]:
        # PYTHONPATH may lead to other packages of the same names. PyTorch keeps the extensions that it compiles at
        # their first use by name alone: in one folder for both sides, each side would overwrite the other's.
        values = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        return values | {"TORCH_EXTENSIONS_DIR": str(self.build.folder / "torch-extensions")}


@contextmanager
def installed_build(experiment: TimedExperiment, program: Sequence[str] = ()) -> Iterator[SideBuild]:
    """A copy of this package, and of the packages of the experiment's implementations, as they are installed.

    Raises `RunError` if one of them cannot be copied.
    """
    packages = packages_of(entry_points_of(experiment))
    with new_build_folder() as folder:
        try:
            build = copy_build(folder, packages)
        except OSError as error:
            raise RunError(f"the installed packages cannot be copied: {error}") from None
        yield SideBuild(build, "HEAD", program=program)


def entry_points_of(experiment: TimedExperiment) -> list[EntryPoint]:
    """The entry points of an experiment's implementations."""
    registry = workload.of(experiment).implementations()
    return [point for name in experiment.implementations if (point := registry.entry_point(name)) is not None]


def check_loads(side: SideBuild, experiment: TimedExperiment, device: str, log: Path) -> None:
    """Raise `RunError` if an implementation is available as it is installed, and not from its copy in the build."""
    registry = workload.of(experiment).implementations()
    names = [name for name in sorted(side.build.facts.provided) if registry.availability(name, device)[1].ok]
    if not names:
        return
    try:
        worker, traits = survey(names, device, lambda: side.start(log, experiment.kind, experiment.pages))
    except LOST as error:
        raise RunError(f"{', '.join(names)}: cannot be kept: a copy does not start: {error}; see {log}") from None
    worker.kill()
    for name, kept in traits.items():
        if not kept.ok:
            raise RunError(f"{name}: cannot be kept: its copy does not load: {kept.refusal()}; see {log}")
