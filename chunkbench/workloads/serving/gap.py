"""Where the gap between two tokens of an answer goes: the parts of a step, beside their least times."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from chunkbench.bench.analysis.derive import Row
from chunkbench.report.model import Cell, Column, Output, Table
from chunkbench.report.numbers import NOTHING, count, ms_of_s, percent
from chunkbench.report.quantities import Quantity, quantities
from chunkbench.report.view import View
from chunkbench.workloads.serving.machine_share import machine_share, parts_of_step
from chunkbench.workloads.serving.metrics import METRICS
from chunkbench.workloads.serving.result import ServingResult

if TYPE_CHECKING:
    from chunkbench.bench.runner.target import Target

OUTSIDE = "outside of steps"
LEGEND = (
    f"parts of the gap = medians over the steps without prompts; {OUTSIDE} = the median gap between tokens - these "
    "parts: HTTP, the engine's loop, and the client, which shares the cores"
)


class PartOfGap(NamedTuple):
    name: str
    seconds: float | None
    """None if the server does not tell its parts."""
    least_s: float | None
    """See `machine_share`; None if the part has no bound."""


def parts_of_gap(facts: ServingResult) -> list[PartOfGap]:
    """The parts of the median gap between tokens, in the order of a step. Without parts from the server: the parts that
    have a bound."""
    least = {part.name: part.least_s for part in parts_of_step(facts)}
    told = [one.server.parts for one in facts.measurements if one.server is not None and one.server.parts]
    if not told:
        return [PartOfGap(name, None, seconds) for name, seconds in least.items()]
    found = [PartOfGap(name, median(parts[name] for parts in told), least.get(name)) for name in told[0]]
    gap = METRICS["gap_s"].value(facts)
    outside = [] if gap is None else [PartOfGap(OUTSIDE, gap - sum(part.seconds or 0.0 for part in found), None)]
    return [*found, *outside]


def tables(view: View) -> list[Table]:
    """A table with the parts of the gap at each point, for servers that tell them. Empty if none does."""

    def parts(row: Row) -> list[PartOfGap]:
        found = parts_of_gap(row.facts) if isinstance(row.facts, ServingResult) else []
        return [part for part in found if part.seconds is not None]

    names = dict.fromkeys(part.name for row in view.rows for part in parts(row))

    def line(name: str) -> Quantity:
        def cell(_: object, row: Row) -> Cell:
            return Cell(next((ms_of_s(part.seconds) for part in parts(row) if part.name == name), NOTHING))

        return f"{name}, ms", cell

    return [quantities(view, "Parts of the gap between tokens", [*map(line, names)])] if names else []


def profile(facts: ServingResult, target: Target) -> Output:
    """The profile of a system at a point, as a document for readers and programs."""
    parts, gap = parts_of_gap(facts), METRICS["gap_s"].value(facts)
    columns = (
        Column[PartOfGap]("part", lambda part: part.name, align="left"),
        Column[PartOfGap]("ms", lambda part: ms_of_s(part.seconds)),
        Column[PartOfGap]("of the gap", lambda part: percent(part.seconds / gap if part.seconds and gap else None)),
        Column[PartOfGap]("least, ms", lambda part: ms_of_s(part.least_s)),
    )
    told = [part for part in parts if part.seconds is not None]
    longest = max(told, key=lambda part: part.seconds or 0.0, default=None)
    headline = f"The median gap between two tokens of an answer is {ms_of_s(gap)} ms."
    if longest is not None and gap:
        headline += f" Its longest part: {longest.name}, {percent((longest.seconds or 0.0) / gap)}."
    if (share := machine_share(facts)) is not None:
        headline += f" The least time of a step at this machine's peaks is {percent(share)} of it."
    limits, cpu = facts.machine_limits, target.environment.cpu
    footer = [("machine", f"{cpu.name}, {count(cpu.cores, 'core')}")]
    if limits is not None:
        peaks = limits.peaks
        footer.append(
            ("peaks", f"{peaks.read_bytes_per_s / 1e9:.1f} GB/s, {peaks.matrix_flops_per_s / 1e9:.0f} GFLOP/s")
        )
    seeds = count(len(facts.measurements), "arrival seed")
    footer.append(("software", f"{facts.package_version}, {count(facts.threads or 1, 'thread')}"))
    footer.append(("timing", f"{seeds}; steps that compute prompts are left out"))
    return Output(
        title=f"{facts.label} at {facts.brief}, {facts.dtype} ({facts.experiment})",
        headline=headline,
        tables=(Table("Parts of the gap between tokens", columns, tuple(parts)),),
        legend=(LEGEND,) if told else (f"{facts.label} does not tell the parts of its steps",),
        footer=tuple(footer),
        data={"gap_s": gap, "parts": [part._asdict() for part in parts]} | facts.model_dump(mode="json"),
    )
