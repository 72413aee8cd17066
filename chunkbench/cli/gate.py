"""`chunkbench gate`: what it did is `chunkbench regress`. The command stays for one version, to say so."""

from __future__ import annotations

import click

from chunkbench.cli.options import without
from chunkbench.cli.output import fail

_EXAMPLES = """\b
Examples:
  chunkbench regress --base main gate.yaml
"""
_GONE = ("--against", "--record", "--again", "--base")


@click.command(
    "gate",
    epilog=_EXAMPLES,
    short_help="Removed: use regress.",
    hidden=True,
    context_settings={"ignore_unknown_options": True},
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def command(words: tuple[str, ...]) -> None:
    """Removed: `chunkbench regress` measures a revision, or another interpreter, beside the present one."""
    kept = " ".join(without(words, _GONE, ("--as-recorded",)))
    fail(
        "recordings with programs are gone: a git revision takes their place. Write:\n"
        f"  chunkbench regress --base REVISION {kept}".rstrip()
        + "\nTo compare runs that exist: chunkbench compare BASE HEAD"
    )
