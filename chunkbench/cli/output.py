"""Common functions of commands: folders of runs, error messages, exit codes, colour."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.shell_completion import CompletionItem

from chunkbench.cli.options import Decorated
from chunkbench.pins import SERVING_INSTALL
from chunkbench.run_error import Remedy, RunError

if TYPE_CHECKING:
    from chunkbench.bench.store import Run
    from chunkbench.bench.store.results import Status
    from chunkbench.report.formats import Part
    from chunkbench.report.model import Document
    from chunkbench.report.text_table import Screen

RUNS = Path("results/runs")
"""The folder of runs below the current directory. The option `--out` replaces it."""
_REMEDY_OPTIONS: Mapping[Remedy, str] = {
    "resume": "--resume continues the run",
    "resume or elsewhere": "--resume continues the run; --out DIR names another folder",
    "elsewhere": "--out DIR names another folder",
    "start again": "leave --resume out",
    "compare speed-ups": "--between machines, dtypes or implementations compares speed-ups instead of times",
    "name the common implementation": "--over IMPL names it",
    "ship or choose": "--ship sends this ChunkBench to them; --machine NAME leaves other machines out",
}
"""Remedy that a `RunError` names -> the options with which the user applies the remedy."""


class OutputFormat(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases of click
    """The type of the option `--format`. The names of formats are looked up when needed, because reports load
    slowly."""

    name = "format"

    def __init__(self, *parts: Part) -> None:
        self._parts = parts
        """The parts of the output, which decide the formats."""

    @property
    def _choice(self) -> click.Choice[str]:
        from chunkbench.report.formats import names

        return click.Choice(names(*self._parts))

    def get_metavar(self, *arguments: Any, **named: Any) -> str | None:
        return self._choice.get_metavar(*arguments, **named)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self._choice.convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return self._choice.shell_complete(ctx, param, incomplete)


def format_option(*parts: Part) -> Callable[[Decorated], Decorated]:
    """The option `--format` for an output with these parts."""
    return click.option("--format", "form", type=OutputFormat(*parts), default="table", show_default=True)


def show(output: Document, form: str) -> None:
    """Print the output of a command in a format."""
    from chunkbench.report.formats import render

    click.echo(render(output, form, screen()), nl=False)


def runs_in(words: Sequence[str | Path]) -> list[Run]:
    """The runs that these arguments name, in the order of the arguments: run directories, folders of runs at any depth,
    `latest`.

    The runs of a folder are in the paper's order, and those of one experiment from the oldest to the newest. Raises
    `RunError`.
    """
    from chunkbench.bench.experiment import reading_order
    from chunkbench.bench.store import latest_run, open_run, runs_below

    found: dict[Path, Run] = {}
    for word in words:
        paths = [latest_run(RUNS)] if word == "latest" else runs_below(Path(word))
        runs = [open_run(path) for path in paths]
        runs.sort(key=lambda run: (reading_order(run.manifest.experiment.name), run.manifest.started_at or ""))
        found |= {run.path: run for run in runs}
    return list(found.values())


def stderr_log(quiet: bool) -> Callable[[str], None]:
    """A function that prints messages to standard error; with -q it prints nothing."""

    def log(text: str) -> None:
        if not quiet:
            click.echo(text, err=True)

    return log


def new_run(name: str) -> Path:
    """The folder of a run that starts now."""
    return RUNS / f"{name}-{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}"


def fail(problem: str | Exception) -> NoReturn:
    """Print a problem with the name of the running command, and exit with code 2."""
    click.echo(f"chunkbench {click.get_current_context().info_name}: {explain(problem)}", err=True)
    raise SystemExit(2)


def explain(problem: str | Exception) -> str:
    """The message in a form that a terminal can show, with the options that solve the problem."""
    from chunkbench.report.model import legal

    remedy = problem.remedy if isinstance(problem, RunError) else None
    return legal(f"{problem} ({_REMEDY_OPTIONS[remedy]})" if remedy else str(problem)).replace("\r", "\ufffd")


def command_line() -> list[str]:
    """The arguments of this process's command line, with `?` in place of bytes that are no text."""
    return ["chunkbench", *(word.encode(errors="replace").decode() for word in sys.argv[1:])]


def typed_command() -> list[str]:
    """`command_line` in a form that the user can type, also if the environment of `chunkbench` is not active."""
    program = ["chunkbench"]
    if Path(sys.argv[0]).name == "__main__.py":
        program = [sys.executable, "-m", "chunkbench"]
    elif shutil.which("chunkbench") is None:
        program = [sys.argv[0]]
    return [*program, *command_line()[1:]]


def run_exit_code(statuses: Iterable[Status]) -> int:
    """Exit code of a command whose cases have these statuses: 3 if a case failed or none was measured, else 0."""
    from chunkbench.bench.store.results import FAILED, MEASURED

    found = {*statuses}
    return 3 if found & FAILED or not found & {*MEASURED} else 0


def on_terminal() -> bool:
    """Whether standard output is a terminal; False if standard output is closed."""
    return sys.stdout is not None and sys.stdout.isatty()


def colour_wanted() -> bool:
    """Whether to print colours: standard output is a terminal that knows them, and `NO_COLOR` has no text."""
    return on_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in ("dumb", "unknown")


def status_line(text: str) -> None:
    """Replace the status line of a terminal by a text; an empty text removes the line."""
    if colour_wanted():
        click.echo(f"\r\033[K{text}", nl=False, err=True)


@contextmanager
def serving_libraries() -> Iterator[None]:
    """End with a message if the block imports a library of the extra `serving` that is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        fail(f"{error.name} is missing: {SERVING_INSTALL}")
    except ValueError as error:  # the engine's own word for a missing library
        fail(error)


def screen(brief: bool = False) -> Screen:
    """The screen of a command's output: the terminal with its width, or a pipe."""
    from chunkbench.report.text_table import Screen

    width = max(60, shutil.get_terminal_size().columns) if on_terminal() else Screen().width
    return Screen(colour_wanted(), width, brief)


def open_page(path: Path) -> None:
    """Show a page in the browser, if there is one."""
    import webbrowser

    if not webbrowser.open(path.resolve().as_uri()):
        click.echo(f"no browser found; open {path}", err=True)


def write_text(path: Path, text: str, check: Callable[[Path], object] = lambda path: None) -> None:
    """Write a file that the user named, whole or not at all, or end with a message. `check` reads the file before it
    gets its name."""
    try:
        if path.exists() and not path.is_file():  # a pipe or a device cannot be replaced by a file
            path.write_text(text, encoding="utf-8")
            return
        place = path.resolve()  # a link stays a link
        temporary = place.with_name(f".{place.name[:60]}.{os.getpid()}.tmp")
        try:
            temporary.write_text(text, encoding="utf-8")
            check(temporary)
            temporary.replace(place)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        fail(f"{path}: cannot be written: {error.strerror}")


def refuse_existing(path: Path) -> None:
    """End with a message if the file that will be written exists already. A pipe or a device may exist."""
    from chunkbench.text_file import is_stream

    if path.is_file() and not is_stream(path):
        fail(f"{path} exists already; give another name, or remove it")


def new_experiment(path: Path) -> Path:
    """The path of an experiment file to be written, with `.yaml` added if the path has no suffix of YAML. The file must
    not exist."""
    if path.suffix not in (".yaml", ".yml"):
        path = path.with_name(f"{path.name}.yaml")
    refuse_existing(path)
    return path


def write_experiment(path: Path, text: str) -> None:
    """Write an experiment, or end with a message if the experiment is not valid."""
    from chunkbench.bench.experiment import ExperimentError, load_experiment

    try:
        write_text(path, text, load_experiment)
    except ExperimentError as error:
        fail(f"{path} is not written, because the experiment would not be valid: {error.problems[0].message}")
