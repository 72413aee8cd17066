"""The command `chunkbench`: imports the module of a command, and turns errors into messages and exit codes."""

from __future__ import annotations

import importlib
import io
import os
import sys

import click
from click.shell_completion import CompletionItem

from chunkbench.version import __version__

_COMMANDS = {
    "demo": ("demo", "Answer sixteen users with and without sharing."),
    "quick": ("quick", "Measure in a minute what shared prefixes gain on this machine."),
    "run": ("run", "Measure an experiment and print its table."),
    "reproduce": ("reproduce", "Measure everything of the paper that this machine can."),
    "profile": ("profile", "Show what limits the speed of a case."),
    "report": ("report", "Rebuild tables and figure of a run."),
    "compare": ("compare", "Compare two runs, case by case."),
    "regress": ("regress", "Measure this code beside another revision, or another Python."),
    "history": ("history", "Show a figure over many runs, and where the figure changed."),
    "claims": ("claims", "Judge the paper's claims by measured results."),
    "prompts": ("prompts", "Count the shared prefixes of prompts (the paper's Table 2)."),
    "traces": ("traces", "Describe lengths, rate and sharing of a trace of requests."),
    "serve": ("serve", "Serve a model whose attention is ChunkAttn."),
    "find-heads": ("find_heads", "Find the retrieval heads of a model."),
    "load": ("load", "Measure a server that speaks OpenAI's protocol."),
    "tune": ("tune", "Find the GPU kernels' tile sizes by measuring."),
    "list": ("list_", "List experiments, implementations or axes."),
    "validate": ("validate", "Check experiment files and count their points and cases."),
    "doctor": ("doctor", "Check whether this machine can measure, and how well."),
    "completion": ("completion", "Print the completion script for a shell."),
}
"""Name -> module, and what `chunkbench --help` says. A module is imported only for its command: some take half a second
of a CPU."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _ = _COMMANDS[cmd_name]
        command: click.Command = importlib.import_module(f"chunkbench.cli.{module}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in _COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [CompletionItem(name, help=_COMMANDS[name][1]) for name in _COMMANDS if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            from chunkbench.text_file import did_you_mean

            ctx.fail(f"No such command {args[0]!r}{did_you_mean(args[0], list(_COMMANDS))}")
        # Import here, not at the top of the module: Ctrl-C during the imports then ends like Ctrl-C later.
        from chunkbench import workloads
        from chunkbench.bench.environment import bind_no_threads, respect_quota

        if bound := bind_no_threads():
            click.echo(f"{', '.join(bound)}: left out, all CPUs are used; choose them with taskset", err=True)
        respect_quota()
        os.environ["MPLBACKEND"] = "agg"  # a notebook's back end draws only in the notebook
        workloads.register()
        return super().resolve_command(ctx, args)


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="chunkbench")
def cli() -> None:
    """Measure decode attention over shared prompt prefixes and set it beside the ChunkAttention paper.

    \b
    Examples:
      chunkbench quick                         what shared prefixes gain here, in a minute
      chunkbench run table3                    the paper's Table 3 on this machine
      chunkbench reproduce                     everything of the paper that this machine can measure, on one page
      chunkbench run experiments/smoke.yaml    every implementation, in seconds
      chunkbench report latest                 the last run's table again
      chunkbench doctor                        what this machine can run, and how to enable the rest
    """


def main() -> None:
    _open_streams()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(
            errors="replace"
        )  # the encoding may lack the lines of tables, and file names may not be UTF-8
    try:
        _main()
    except (KeyboardInterrupt, click.Abort):  # also during imports
        click.echo("interrupted", err=True)
        sys.exit(130)


def _open_streams() -> None:
    """Open closed standard streams as the null device, else the next opened file would become a standard stream."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # The null device takes the lowest free number, and stays open.
            setattr(sys, name, open(os.devnull, "w" if number else "r"))  # noqa: SIM115


def _main() -> None:
    from chunkbench.cli.output import explain

    try:
        # Without click's standalone mode, the call returns the exit code that a command set.
        code = cli(prog_name="chunkbench", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except ValueError as error:
        from chunkbench.bench.experiment import ExperimentError
        from chunkbench.run_error import RunError

        if not isinstance(error, (ExperimentError, RunError)):
            raise
        click.echo(f"chunkbench: {explain(error)}", err=True)
        sys.exit(2)
    except OSError as error:  # for example a full disk: a traceback would not help
        click.echo(f"chunkbench: {error}", err=True)
        sys.exit(2)
