"""Speed-ups of two measurements as a table."""

from __future__ import annotations

from statistics import geometric_mean

from chunkbench.analysis.points import varying
from chunkbench.experiment.values import show_value
from chunkbench.regression.speedups import Change, Speedups
from chunkbench.report.model import Cell, Column, Document, Emphasis, Table
from chunkbench.report.numbers import count, ratio_span

_EMPHASIS: dict[Change, Emphasis] = {"larger": "best", "smaller": "failed", "same": "quiet", "inconclusive": "noisy"}


def document(compared: Speedups) -> Document:
    """One row per point and implementation, in the order of the points."""
    axes = varying([(entry.axes, []) for entry in compared.speedups])
    pairs = any(entry.base_implementation != entry.head_implementation for entry in compared.speedups)
    heads = [*axes, *(["BASE's", "HEAD's"] if pairs else ["implementation"])]
    columns = [Column(head, (head,), "left") for head in heads]
    columns += [
        Column("speed-up of BASE", ("speed-up", "BASE")),
        Column("speed-up of HEAD", ("speed-up", "HEAD")),
        Column("HEAD / BASE", ("HEAD /", "BASE")),
        Column("interval", ("interval",)),
        Column("speed-up is", ("speed-up", "is"), "left"),
    ]
    rows = []
    for entry in compared.speedups:
        names = [entry.base_implementation, entry.head_implementation] if pairs else [entry.head_implementation]
        texts = [*(show_value(entry.axes.get(axis)) for axis in axes), *names]
        texts += [f"{entry.base:.2f}x", f"{entry.head:.2f}x", f"{entry.ratio:.3f}x"]
        texts += [ratio_span(entry.low, entry.high)]
        rows.append((*map(Cell, texts), Cell(entry.change, _EMPHASIS[entry.change])))
    return Document(
        title=f"Speed-ups over {compared.over}, between {compared.between}: {compared.head.path} against "
        f"{compared.base.path}",
        warnings=(),
        losses=_counts(compared),
        headline="",
        tables=(_means(compared), Table("Speed-ups", tuple(columns), tuple(rows), keys=len(heads))),
        statuses=(),
        legend=(
            f"speed-up: time of {compared.over} over the time of the implementation, from rounds that ran side by side "
            "on one machine; HEAD / BASE: the ratio of the two speed-ups (Mann-Whitney interval)",
            f"larger, smaller: the whole interval lies beyond {compared.threshold:.1%}; with too few rounds for an "
            "interval, all rounds of one side lie far beyond those of the other (1.5x, with one round 2x); same: the "
            "whole interval lies within; inconclusive: neither. All intervals together hold with "
            f"{compared.confidence:.1%}",
        ),
        footer=(("BASE", compared.base.path), ("HEAD", compared.head.path)),
    )


def _means(compared: Speedups) -> Table:
    """One row per implementation, or per pair: the ratio of its speed-ups over all points."""
    ratios: dict[str, list[float]] = {}
    for entry in compared.speedups:
        names = dict.fromkeys((entry.base_implementation, entry.head_implementation))
        ratios.setdefault(" / ".join(names), []).append(entry.ratio)
    columns = (
        Column("implementation", ("implementation",), "left"),
        Column("points", ("points",)),
        Column("HEAD / BASE, geometric mean", ("HEAD /", "BASE")),
        Column("least and most", ("least", "and most")),
    )
    rows = tuple(
        (
            Cell(name),
            Cell(str(len(members))),
            Cell(f"{geometric_mean(members):.3f}x"),
            Cell(ratio_span(min(members), max(members))),
        )
        for name, members in ratios.items()
    )
    return Table("By implementation, geometric means", columns, rows, keys=1)


def _counts(compared: Speedups) -> str:
    changes: tuple[Change, ...] = ("smaller", "inconclusive", "larger", "same")
    numbers = {change: sum(entry.change == change for entry in compared.speedups) for change in changes}
    counts = ", ".join(f"{number} {change}" for change, number in numbers.items() if number)
    return f"{count(len(compared.speedups), 'speed-up')}: {counts}."
