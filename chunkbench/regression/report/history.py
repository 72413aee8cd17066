"""A history as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chunkbench.analysis.points import describe, varying
from chunkbench.experiment.values import show_value
from chunkbench.regression.history import Across, Series
from chunkbench.report.model import Cell, Column, Document, Emphasis, Table
from chunkbench.report.numbers import NOTHING, count, significant

_MOST_LINES = 8
"""Lines of a panel that can be told apart."""
_ACROSS_HEADS = (("last level", "/ first machine's"), ("machine's", "own"), ("verdict",))
_ACROSS = (
    "last level / first machine's: raw; machine's own: what fixed work took on this machine over the first that "
    "measured the case (yardsticks, read bandwidth, matrix rate), least and most; the verdict is on what that leaves"
)


def document(series: Sequence[Series], threshold: float, confidence: float) -> Document:
    """The table: changed cases first."""
    ordered = sorted(series, key=lambda one: (not one.changes, one.implementation, one.name))
    axes = varying([(one.axes, []) for one in ordered])
    several = len({one.machine for one in ordered}) > 1
    across = any(one.across for one in ordered)
    columns = [Column(head, (head,), "left") for head in ("implementation", *axes, *(["machine"] if several else []))]
    columns += [
        Column("runs", ("runs",)),
        Column("first level (us)", ("first", "level us")),
        Column("last level (us)", ("last", "level us")),
        *(Column(" ".join(head), head) for head in (_ACROSS_HEADS if across else ())),
        Column("changes", ("changes",), "left"),
    ]
    rows = []
    for one in ordered:
        words = [one.implementation, *(show_value(one.axes.get(axis)) for axis in axes)]
        words += [str(one.machine)] if several else []
        words += [str(len(one.measurements)), significant(one.levels[0]), significant(one.levels[-1])]
        words += _across(one.across) if across else []
        changes = ", ".join(f"{c.ratio:.3f}x at {c.commit or c.started_at}" for c in one.changes) or NOTHING
        worse = any(change.ratio > 1 for change in one.changes)
        emphasis: Emphasis = "failed" if worse else "best" if one.changes else "plain"
        rows.append((*(Cell(word) for word in words), Cell(changes, emphasis)))
    changed = sum(bool(one.changes) for one in ordered)
    return Document(
        title=f"History of {count(len(ordered), 'case')}",
        warnings=(),
        losses=f"{count(changed, 'case')} changed." if changed else "No change found.",
        headline="",
        tables=(Table("Cases, changed ones first", tuple(columns), tuple(rows), keys=1 + len(axes)),),
        statuses=(),
        legend=(
            f"changes: levels that differ by more than {threshold:.1%}: binary segmentation, tested by permutation, at "
            f"{confidence:.1%} confidence for all cases together; a level lasts for three runs at least",
            *((_ACROSS,) if across else ()),
        ),
        footer=(),
    )


def _across(across: Across | None) -> list[str]:
    """A series beside that of the first machine: the cells under `_ACROSS_HEADS`."""
    if across is None:
        return [NOTHING] * len(_ACROSS_HEADS)
    own = across.machine_low, across.machine_high
    told = NOTHING if None in own else "{:.2f}..{:.2f}".format(*own)
    return [f"{across.ratio:.3f}x", told, across.verdict]


def draw(series: Sequence[Series], folder: Path) -> list[Path]:
    """Write `history.png` and `history.svg`: a panel for each implementation, latencies over the first level."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from chunkbench.report.figures.style import PALETTE, STYLE

    names = list(dict.fromkeys(one.implementation for one in series))
    axes_names = varying([(one.axes, []) for one in series])
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.0, 0.6 + 2.2 * len(names)), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
        for panel, name in zip(panels, names, strict=True):
            members = [one for one in series if one.implementation == name]
            members.sort(key=lambda one: (not one.changes, one.name))
            for (colour, marker), one in zip(PALETTE * 2, members[:_MOST_LINES], strict=False):
                label = describe(one.axes, axes_names) or one.label
                values = [m.latency_us / one.levels[0] for m in one.measurements]
                panel.plot(range(1, len(values) + 1), values, color=colour, marker=marker, markersize=4, label=label)
                for change in one.changes:
                    panel.axvline(change.index + 0.5, color=colour, linewidth=0.8, linestyle=(0, (4, 2)))
                    panel.annotate(
                        f"{change.ratio:.2f}x {change.commit or ''}".strip(),
                        (change.index + 0.5, 1.0),
                        xycoords=("data", "axes fraction"),
                        xytext=(2, -2),
                        textcoords="offset points",
                        fontsize=7,
                        va="top",
                        color=colour,
                    )
            more = f" (first {_MOST_LINES} of {len(members)})" if len(members) > _MOST_LINES else ""
            panel.set_title(f"{members[0].label}{more}", loc="left", fontsize=9)
            panel.set_ylabel("latency / first level")
            panel.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
            panel.xaxis.get_major_locator().set_params(integer=True)
        panels[-1].set_xlabel("run, in the order of time")
        paths = [folder / "history.png", folder / "history.svg"]
        figure.savefig(paths[0], dpi=160, metadata={"Software": None})
        figure.savefig(paths[1], metadata={"Date": None, "Creator": "ChunkBench"})
    return paths
