"""`chunkbench tune`: finds the fastest tile sizes and launch sizes of the Triton kernels for this machine's GPU."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING

import click

from chunkbench.cli.options import gathered, without
from chunkbench.cli.output import command_line, fail, stderr_log
from chunkbench.cli.placing import FLAGS, VALUED, Placing, placing_options

if TYPE_CHECKING:
    from chunkbench.bench.measure.tune import Trial


@click.command(
    "tune",
    epilog="""\b
    Examples:
      chunkbench tune                                            all head dimensions, into tuning.json
      chunkbench tune --head-dim 128 --out mine.json
      CHUNKBENCH_TUNING=mine.json chunkbench run table3          use it
      chunkbench tune --on ray --machines each                   on every kind of GPU of a cluster
    """,
)
@click.option(
    "--head-dim",
    "head_dims",
    type=click.Choice(["64", "128", "256"]),
    multiple=True,
    help="Tune only this head dimension. Repeatable.  [default: all]",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("tuning.json"),
    show_default=True,
    help="The table to write. Its rows for other GPUs are kept. A new table begins with the packaged rows.",
)
@placing_options
@click.option("-q", "--quiet", is_flag=True, help="Do not print a line for every candidate.")
@gathered(Placing, "placing")
def command(head_dims: tuple[str, ...], out: Path, quiet: bool, placing: Placing) -> None:
    """Time candidates for the Triton kernels' sizes on this machine's GPU, and write the fastest to a tuning table.

    Each head dimension takes some minutes, mostly for compiling. The table is written after each head dimension, so
    Ctrl-C loses only the current one. The variable CHUNKBENCH_TUNING names the table that runs use.

    With --on ray, a node of the cluster does the work. With --machines each, one node of every kind does it, one
    after the other.
    """
    if placing.remote:
        _on_cluster(out, quiet, placing)
        return
    placing.check_local()
    import torch

    from chunkbench.kernels.triton import HEAD_DIMS, capability, why_unavailable
    from chunkbench.kernels.triton.tuning import UnusableTable, path, read, write

    obstacle = why_unavailable(torch.device("cuda"))
    if obstacle:
        fail(f"candidates can be timed only on an NVIDIA GPU: {obstacle}")
    from chunkbench.bench.measure.tune import Stopwatch, fit_all, search

    try:
        table = read(out if out.exists() else path())
    except UnusableTable as error:
        fail(error)
    generation = capability()
    for head_dim in map(int, head_dims or map(str, HEAD_DIMS)):

        def announce(trial: Trial, head_dim: int = head_dim) -> None:
            if not quiet:
                click.echo(f"head_dim {head_dim}: {_describe(trial)}", err=True)

        stopwatch = Stopwatch(head_dim)
        try:
            best = search(partial(fit_all, generation, head_dim), stopwatch.measure, announce)
        except RuntimeError as error:
            fail(f"head_dim {head_dim}: {error}; {out} holds the results for earlier head dimensions")
        table.setdefault(f"sm_{generation}", {})[head_dim] = best
        write(table, out)
        click.echo(f"head_dim {head_dim}: {best} -> {out}")


def _on_cluster(out: Path, quiet: bool, placing: Placing) -> None:
    """Tune on nodes of a cluster. Each node starts from the table that the previous node wrote."""
    from chunkbench.plugins.ray.remote import OUT
    from chunkbench.plugins.ray.remote_commands import run_remote_command

    log = stderr_log(quiet)
    words = [*without(command_line()[1:], (*VALUED, "--out"), FLAGS), "--out", f"{OUT}/{out.name}"]
    with placing.fleet(log) as fleet:
        nodes = fleet.one_of_each(placing.machines, placing.machine)
        with_gpu = [node for node in nodes if node.environment.gpus]
        if not with_gpu:
            kinds = "; ".join(node.kind for node in nodes)
            fail(f"candidates can be timed only on an NVIDIA GPU, and PyTorch sees none on {kinds}")
        for node in with_gpu:
            files = {f"{OUT}/{out.name}": out.read_bytes()} if out.exists() else {}
            done = run_remote_command(fleet.cluster, node, words, files, None, log)
            if done.code:
                fail(f"on {node.name}: {done.stderr.strip()}")
            done.unpack(out.parent)
            click.echo(done.stdout, nl=False)


def _describe(trial: Trial) -> str:
    sizes = ", ".join(f"{name} {value}" for name, value in trial.tuning._asdict().items())
    if trial.reason:
        return f"{sizes}: {trial.reason}"
    times = " ".join(f"{time:.1f}" for time in trial.times_us)
    return f"{sizes}: {geometric_mean(trial.times_us):.1f} us ({times})"
