"""`chunkbench doctor`: checks what this machine has and lacks, and what disturbs measurements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from chunkbench.cli.output import format_option, show

if TYPE_CHECKING:
    from chunkbench.bench.environment import Diagnosis
    from chunkbench.report.model import Emphasis

_EMPHASIS: Mapping[str, Emphasis] = {"ok": "best", "warn": "noisy", "error": "failed"}

_SERVING = ("aiohttp", "prometheus_client", "starlette", "transformers", "uvicorn")
"""Modules of the extra `serving`."""

EPILOG = """\b
Examples:
  chunkbench doctor
  chunkbench doctor --format json
"""


@click.command(name="doctor", epilog=EPILOG)
@format_option("documents", "records", "data")
@click.option("-q", "--quiet", is_flag=True, help="Show only checks that need attention.")
@click.pass_context
def command(context: click.Context, form: str, quiet: bool) -> None:
    """Check whether this machine can measure, and how well.

    Takes about three seconds. Exit code 2 if something makes measuring impossible, else 0, also with warnings.
    """
    # This import loads torch. Here it does not slow `--help` down.
    from chunkbench.bench.environment import diagnose
    from chunkbench.report.model import Cell, Column, Output, Table

    findings = diagnose()
    if any(finding.title == "memory" for finding in findings):  # without PyTorch there is nothing more to check
        findings += [*_plugin(), _serving(), _table3()]
    shown = [finding for finding in findings if not quiet or finding.level != "ok"]
    columns: tuple[Column[Diagnosis], ...] = (
        Column("level", lambda finding: Cell(finding.level, _EMPHASIS[finding.level]), align="left"),
        Column("check", lambda finding: finding.title, align="left"),
        Column(
            "finding",
            lambda finding: finding.detail + (f"\n-> {finding.remedy}" if finding.remedy else ""),
            align="left",
            wrap=True,
        ),
    )
    show(Output(tables=(Table("", columns, shown),), data=[finding.model_dump() for finding in shown]), form)
    if any(finding.level == "error" for finding in findings):
        context.exit(2)


def _plugin() -> Iterator[Diagnosis]:
    """Check whether an installed vLLM accepts our plug-in."""
    from chunkbench.bench.environment import Diagnosis
    from chunkbench.bench.environment.software import read_gpus
    from chunkbench.plugins.vllm import plugin

    version = plugin.vllm_version()
    if version is None:
        return
    obstacle = plugin.why_not("cuda" if read_gpus() else "cpu")
    fits = f"fits vLLM {version}; VLLM_PLUGINS={plugin.NAME} turns it on"
    detail = f"would not load: {obstacle}" if obstacle else fits
    yield Diagnosis(level="warn" if obstacle else "ok", title="plug-in for vLLM", detail=detail)


def _serving() -> Diagnosis:
    """Check whether `demo`, `serve` and `load` find their libraries and the small model."""
    from chunkbench.bench.environment import Diagnosis
    from chunkbench.pins import SERVING_INSTALL
    from chunkbench.server import smollm2

    title = "demo, serve, load"
    if lacking := [name for name in _SERVING if find_spec(name) is None]:
        detail = f"cannot run, because libraries are missing: {', '.join(lacking)}"
        return Diagnosis(level="warn", title=title, detail=detail, remedy=SERVING_INSTALL)
    try:
        smollm2.source()
    except smollm2.ModelMissing as error:
        return Diagnosis(level="warn", title=title, detail="demo has no model", remedy=str(error))
    return Diagnosis(level="ok", title=title, detail=f"can run, with {smollm2.NAME}")


def _table3() -> Diagnosis:
    """Check the memory and time that a run of Table 3 would take here, with a dry run."""
    from chunkbench.bench import workload
    from chunkbench.bench.environment import Diagnosis
    from chunkbench.bench.experiment import load_experiment
    from chunkbench.bench.runner.dry_run import in_words
    from chunkbench.bench.runner.target import resolve_target

    experiment = load_experiment("table3")
    target = resolve_target(experiment)
    expected = workload.of(experiment).estimate(experiment, target)
    detail = in_words(expected, experiment)
    grouping = None if isinstance(expected, str) else expected.grouping
    if grouping is None or not grouping.too_large:
        return Diagnosis(level="ok", title="chunkbench run table3", detail=detail)
    remedy = "free some memory or raise the limit; points that do not fit become rows with status oom"
    return Diagnosis(level="warn", title="chunkbench run table3", detail=detail, remedy=remedy)
