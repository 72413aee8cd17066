"""`chunkbench completion`: the script that completes the command line in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(
    "completion",
    epilog="""\b
    Examples (put the line into the start-up file of the shell):
      bash, ~/.bashrc:   eval "$(chunkbench completion bash)"
      zsh, ~/.zshrc:     eval "$(chunkbench completion zsh)"
      fish:              chunkbench completion fish > ~/.config/fish/completions/chunkbench.fish
    """,
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the script that completes commands, options and values in SHELL."""
    script = get_completion_class(shell)
    assert script is not None, "click completes every shell that the argument allows"
    click.echo(script(context.find_root().command, {}, "chunkbench", "_CHUNKBENCH_COMPLETE").source())
