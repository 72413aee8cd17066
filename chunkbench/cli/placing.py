"""Options that say where to measure: on this machine, or on machines of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chunkbench.cli.options import Decorated, with_options

if TYPE_CHECKING:
    from chunkbench.bench.experiment import Experiment
    from chunkbench.bench.runner.executor import Executor
    from chunkbench.plugins.ray.fleet import Fleet
    from chunkbench.plugins.ray.nodes import Machines

    ExecutorFor = Callable[[Experiment, Path | None], Executor]
    """Makes the executor of an experiment. The path is the folder of a run to resume, or None."""

LOCAL, RAY = "local", "ray"
VALUED, FLAGS = ("--on", "--machines", "--machine"), ("--alone", "--ship")
"""Names of these options: those with a value, and those without. Commands use them to remove the options."""


def _place(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if value not in (LOCAL, RAY) and not value.startswith("ray://"):
        raise click.BadParameter(f"{value!r}: write local, ray, or ray://HOST:PORT", ctx, param)
    return value


def placing_options(command: Decorated) -> Decorated:
    """Add the options that say where to measure."""
    options = (
        click.option(
            "--on",
            default=LOCAL,
            show_default=True,
            callback=_place,
            metavar="PLACE",
            help="Where to measure: local; ray, the Ray cluster of this host or of RAY_ADDRESS; ray://HOST:PORT.",
        ),
        click.option(
            "--machines",
            type=click.Choice(["any", "each"]),
            help="With --on ray. any: machines of one kind share the points; each: every kind measures all points.  "
            "[default: any]",
        ),
        click.option(
            "--machine",
            metavar="NAME",
            help="With --on ray: only machines with this text in the name of their GPU, processor or id, e.g. a100.",
        ),
        click.option("--alone", is_flag=True, help="With --on ray: measure on one GPU of a node at a time."),
        click.option(
            "--ship",
            is_flag=True,
            help="With --on ray: send this ChunkBench to the nodes, and measure there with this version.",
        ),
    )
    return with_options(command, options)


@dataclass(frozen=True)
class Placing:
    """Values of the options that say where to measure."""

    on: str
    machines: Machines | None
    machine: str | None
    alone: bool
    ship: bool

    @property
    def remote(self) -> bool:
        return self.on != LOCAL

    @contextmanager
    def executors(self, log: Callable[[str], None], describing: bool = False) -> Iterator[ExecutorFor]:
        """A context that gives a function. The function makes the executor of an experiment. Raises `RunError`.

        `log` receives warnings. `describing`: only print a plan, measure nothing.
        """
        from chunkbench.bench.runner.executor import LocalExecutor
        from chunkbench.bench.runner.target import resolve_target

        if not self.remote:
            self.check_local()
            yield lambda experiment, _: LocalExecutor(resolve_target(experiment, describing))
            return
        from chunkbench.plugins.ray.executor import RayExecutor

        with self.fleet(log) as fleet:
            yield lambda experiment, run: RayExecutor(fleet, experiment, self.machines, self.machine, run)

    def fleet(self, log: Callable[[str], None]) -> AbstractContextManager[Fleet]:
        """A context that gives the machines of the cluster. Entering it may raise `RunError`."""
        from chunkbench.plugins.ray.fleet import connected

        return connected(None if self.on == RAY else self.on, self.machine, self.alone, self.ship, log)

    def check_local(self) -> None:
        """Raises `click.UsageError` if an option for clusters was given."""
        given = {
            "--machines": self.machines is not None,
            "--machine": self.machine is not None,
            "--alone": self.alone,
            "--ship": self.ship,
        }
        for option, is_given in given.items():
            if is_given:
                raise click.UsageError(f"{option} belongs to --on ray")
