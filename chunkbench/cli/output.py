"""What commands have in common: folders of runs, error messages, exit codes, colour."""

from __future__ import annotations

import os
import shutil
import sys
import time
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
"""The folder of runs, in the current directory."""
_EVERY_S = 10.0
_REMEDY_OPTIONS: Mapping[Remedy, str] = {
    "resume": "--resume continues the run",
    "resume or elsewhere": "--resume continues the run; --out DIR names another folder",
    "elsewhere": "--out DIR names another folder",
    "start again": "leave --resume out",
    "compare speed-ups": "--between machines, dtypes or implementations compares speed-ups instead of times",
    "name the common implementation": "--over IMPL names it",
    "ship or choose": "--ship sends this ChunkBench to them; --machine NAME leaves other machines out",
}
"""Remedy of a `RunError` -> text that names options of the command line and says what they do."""


class OutputFormat(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases of click
    """The type of the option `--format`. It loads the names of formats only when they are needed, because reports
    load slowly."""

    name = "format"

    def __init__(self, *parts: Part, others: Iterable[str] = ()) -> None:
        self._parts = parts
        """The parts of the output. They decide which formats are possible."""
        self._others = others
        """Names of formats that only this command has."""

    @property
    def _choice(self) -> click.Choice[str]:
        from chunkbench.report.formats import names

        return click.Choice([*names(*self._parts), *self._others])

    def get_metavar(self, *arguments: Any, **named: Any) -> str | None:
        return self._choice.get_metavar(*arguments, **named)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self._choice.convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return self._choice.shell_complete(ctx, param, incomplete)


def format_option(*parts: Part, others: Iterable[str] = ()) -> Callable[[Decorated], Decorated]:
    """Make the option `--format`. `parts`: the parts of the output, which decide the possible formats. `others`: more
    formats, which only this command has."""
    kind = OutputFormat(*parts, others=others)
    return click.option("--format", "form", type=kind, default="table", show_default=True)


def show(output: Document, form: str) -> None:
    """Print an output in the format `form`."""
    from chunkbench.report.formats import render

    click.echo(render(output, form, screen()), nl=False)


def runs_in(words: Sequence[str | Path]) -> list[Run]:
    """Open the runs that the arguments name: run directories, folders of runs at any depth, or `latest`.

    The runs are in the order of the arguments. Runs of a folder are in the paper's order of experiments, and runs of
    an experiment are in order of time. Raises `RunError`.
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
    """A function that prints a message to standard error, or nothing if `quiet`."""

    def log(text: str) -> None:
        if not quiet:
            click.echo(text, err=True)

    return log


def new_run(name: str) -> Path:
    """A name for the folder of a new run, from the experiment's name and the time."""
    return RUNS / f"{name}-{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}"


def fail(problem: str | Exception) -> NoReturn:
    """Print a problem after the name of the running command, and exit with code 2."""
    click.echo(f"chunkbench {click.get_current_context().info_name}: {explain(problem)}", err=True)
    raise SystemExit(2)


def explain(problem: str | Exception) -> str:
    """The message, and the options that solve the problem, without characters that a terminal cannot show."""
    from chunkbench.report.model import legal

    remedy = problem.remedy if isinstance(problem, RunError) else None
    return legal(f"{problem} ({_REMEDY_OPTIONS[remedy]})" if remedy else str(problem)).replace("\r", "\ufffd")


def command_line() -> list[str]:
    """The arguments of this process, with `?` in place of bytes that are not text."""
    return ["chunkbench", *(word.encode(errors="replace").decode() for word in sys.argv[1:])]


def typed_command() -> list[str]:
    """Like `command_line`, but with a program that the user can call even outside the environment of `chunkbench`."""
    program = ["chunkbench"]
    if Path(sys.argv[0]).name == "__main__.py":
        program = [sys.executable, "-m", "chunkbench"]
    elif shutil.which("chunkbench") is None:
        program = [sys.argv[0]]
    return [*program, *command_line()[1:]]


def run_exit_code(statuses: Iterable[Status]) -> int:
    """The exit code for cases with these statuses: 3 if a case failed or none was measured, else 0."""
    from chunkbench.bench.store.results import FAILED, MEASURED

    found = {*statuses}
    return 3 if found & FAILED or not found & {*MEASURED} else 0


def on_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def colour_wanted() -> bool:
    """Whether to print colours: only on a terminal with colours, and not if the variable `NO_COLOR` is set."""
    return on_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in ("dumb", "unknown")


class _StatusLine:
    """Shows what a long command does. On a terminal each text replaces the last one. Elsewhere, as in a log, a text is
    a line of its own, and there is at most one line in `_EVERY_S` seconds."""

    def __init__(self) -> None:
        self._printed_at: float | None = None

    def __call__(self, text: str) -> None:
        """Show a text. An empty text removes the line, at the end of the work."""
        now = time.monotonic()
        if colour_wanted():
            click.echo(f"\r\033[K{text}", nl=False, err=True)
        elif not text or self._printed_at is None:
            self._printed_at = now if text else None
        elif now - self._printed_at >= _EVERY_S:
            self._printed_at = now
            click.echo(text, err=True)


status_line = _StatusLine()


@contextmanager
def serving_libraries() -> Iterator[None]:
    """A context that ends the command with a message if a library of the extra `serving` is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        fail(f"{error.name} is missing: {SERVING_INSTALL}")
    except ValueError as error:  # the engine's own word for a missing library
        fail(error)


def screen(brief: bool = False) -> Screen:
    """What a command prints to: a terminal with its width and colours, or a pipe."""
    from chunkbench.report.text_table import Screen

    width = max(60, shutil.get_terminal_size().columns) if on_terminal() else Screen().width
    return Screen(colour_wanted(), width, brief)


def open_page(path: Path) -> None:
    """Show a page in the browser. If there is no browser, print the path."""
    import webbrowser

    if not webbrowser.open(path.resolve().as_uri()):
        click.echo(f"no browser found; open {path}", err=True)


def write_text(path: Path, text: str, check: Callable[[Path], object] = lambda path: None) -> None:
    """Write a file completely, or end the command with a message and leave the old file unchanged.

    `check` is called with the path of a temporary file that holds the new text. If `check` raises, the old file also
    stays. A pipe or a device is written directly, without `check`.
    """
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
    """End with a message if the file exists already. A pipe or a device may exist."""
    from chunkbench.text_file import is_stream

    if path.is_file() and not is_stream(path):
        fail(f"{path} exists already; give another name, or remove it")


def new_experiment(path: Path) -> Path:
    """A path for a new experiment file. `.yaml` is added if it has no suffix of YAML. The file must not exist."""
    if path.suffix not in (".yaml", ".yml"):
        path = path.with_name(f"{path.name}.yaml")
    refuse_existing(path)
    return path


def write_experiment(path: Path, text: str) -> None:
    """Write an experiment file. End with a message if the experiment is not valid."""
    from chunkbench.bench.experiment import ExperimentError, load_experiment

    try:
        write_text(path, text, load_experiment)
    except ExperimentError as error:
        fail(f"{path} is not written, because the experiment would not be valid: {error.problems[0].message}")
