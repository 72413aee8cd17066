"""Shows the speed-ups of two measurements as a table."""

from __future__ import annotations

from statistics import geometric_mean

from chunkbench.bench.analysis.points import varying
from chunkbench.bench.experiment.values import show_value
from chunkbench.report.compare.speedups import Change, Speedup, Speedups
from chunkbench.report.model import Cell, Column, Emphasis, Output, Table
from chunkbench.report.numbers import count, ratio_span

_EMPHASIS: dict[Change, Emphasis] = {"larger": "best", "smaller": "failed", "same": "quiet", "inconclusive": "noisy"}


def document(compared: Speedups) -> Output:
    """Make a table with one row for each point and implementation."""
    pairs = any(entry.base_implementation != entry.head_implementation for entry in compared.speedups)

    def axis_column(axis: str) -> Column[Speedup]:
        return Column(axis, lambda entry: show_value(entry.axes.get(axis)), align="left")

    base: Column[Speedup] = Column("BASE's", lambda entry: entry.base_implementation, align="left")
    names: list[Column[Speedup]] = [
        *map(axis_column, varying([(entry.axes, []) for entry in compared.speedups])),
        *([base] if pairs else []),
        Column("HEAD's" if pairs else "implementation", lambda entry: entry.head_implementation, align="left"),
    ]
    columns = (
        *names,
        Column("speed-up of BASE", lambda entry: f"{entry.base:.2f}x", ("speed-up", "BASE")),
        Column("speed-up of HEAD", lambda entry: f"{entry.head:.2f}x", ("speed-up", "HEAD")),
        Column("HEAD / BASE", lambda entry: f"{entry.ratio:.3f}x", ("HEAD /", "BASE")),
        Column("interval", lambda entry: ratio_span(entry.low, entry.high)),
        Column("speed-up is", lambda entry: Cell(entry.change, _EMPHASIS[entry.change]), ("speed-up", "is"), "left"),
    )
    return Output(
        title=f"Speed-ups over {compared.over}, between {compared.between}: {compared.head.path} against "
        f"{compared.base.path}",
        verdict=_counts(compared),
        tables=(_means(compared), Table("Speed-ups", columns, compared.speedups, keys=len(names))),
        legend=(
            f"speed-up: time of {compared.over} over the time of the implementation, from rounds that ran side by side "
            "on one machine; HEAD / BASE: the ratio of the two speed-ups (Mann-Whitney interval)",
            f"larger, smaller: the whole interval lies beyond {compared.threshold:.1%}; with too few rounds for an "
            "interval, all rounds of one side are 1.5 times those of the other or more (of one round: twice); same: "
            "the whole interval lies within; inconclusive: neither. All intervals together hold with "
            f"{compared.confidence:.1%}",
        ),
        footer=(("BASE", compared.base.path), ("HEAD", compared.head.path)),
        data=compared.model_dump(mode="json"),
    )


def _means(compared: Speedups) -> Table:
    """One row per implementation, or per pair of implementations: the ratio of the speed-ups over all points."""
    ratios: dict[str, list[float]] = {}
    for entry in compared.speedups:
        names = dict.fromkeys((entry.base_implementation, entry.head_implementation))
        ratios.setdefault(" / ".join(names), []).append(entry.ratio)
    columns: tuple[Column[tuple[str, list[float]]], ...] = (
        Column("implementation", lambda line: line[0], align="left"),
        Column("points", lambda line: str(len(line[1]))),
        Column("HEAD / BASE, geometric mean", lambda line: f"{geometric_mean(line[1]):.3f}x", ("HEAD /", "BASE")),
        Column("least and most", lambda line: ratio_span(min(line[1]), max(line[1])), ("least", "and most")),
    )
    return Table("By implementation, geometric means", columns, list(ratios.items()))


def _counts(compared: Speedups) -> str:
    changes: tuple[Change, ...] = ("smaller", "inconclusive", "larger", "same")
    numbers = {change: sum(entry.change == change for entry in compared.speedups) for change in changes}
    counts = ", ".join(f"{number} {change}" for change, number in numbers.items() if number)
    return f"{count(len(compared.speedups), 'speed-up')}: {counts}."
