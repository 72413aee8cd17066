"""The figure: speed-up of ChunkAttn over each implementation against the shared part of the prompt, and the paper's."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from chunkbench.report.columns import ordered
from chunkbench.report.curves import SHARE, Curve, Panel, panels, x_axis
from chunkbench.report.footer import machine
from chunkbench.report.model import Report
from chunkbench.report.numbers import count

MOST_PANELS = 9
_ACROSS = 3
_PANEL_INCHES = (3.3, 2.9)
_LEGEND_COLUMNS = 5
_DASHES = (0, (4, 2))
_BAR_ROOM = 2.0
_SHORT_TITLE = 28

# Okabe and Ito's palette, which colour-blind readers can tell apart; markers carry the difference in grey print.
_LOOKS: Mapping[str, tuple[str, str]] = {
    "naive": ("#555555", "o"),
    "xformers": ("#CC79A7", "v"),
    "flash_attn": ("#D55E00", "^"),
    "paged_attn": ("#56B4E9", "s"),
    "paged_attn_star": ("#0072B2", "D"),
    "vllm_paged_attn": ("#56B4E9", "P"),
    "vllm_paged_attn_star": ("#0072B2", "*"),
    "shared_prefix_matmul": ("#009E73", "X"),
    "chunk_attn_torch": ("#882255", "<"),
    "chunk_attn_no_tpp": ("#E69F00", "p"),
}
COLOURS = (*_LOOKS.values(),)
_SPARE = (("#000000", "h"), ("#117733", ">"), ("#999933", "d"), ("#332288", "8"))

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "svg.hashsalt": "chunkbench",
}


def draw(report: Report, manifest: Mapping[str, Any]) -> Figure | None:
    """One panel per n_p; None when no implementation was measured beside the baseline."""
    if (manifest.get("experiment") or {}).get("kind", "decode") != "decode":
        return None
    found = panels(report)
    if not any(curve.here for panel in found for curve in panel.curves):
        return None
    shown = found[:MOST_PANELS]
    with mpl.rc_context(STYLE):
        return _draw(report, shown, _caption(report, manifest, len(found)))


def save(figure: Figure, folder: Path) -> list[Path]:
    """Write `figure.png` and `figure.svg`; the same run gives the same bytes."""
    png, svg = folder / "figure.png", folder / "figure.svg"
    with mpl.rc_context(STYLE):
        figure.savefig(png, dpi=160, metadata={"Software": None})
        figure.savefig(svg, metadata={"Date": None, "Creator": "ChunkBench"})
    return [png, svg]


def _draw(report: Report, shown: Sequence[Panel], caption: str) -> Figure:
    axis = x_axis(report)
    across = min(_ACROSS, len(shown))
    down = math.ceil(len(shown) / across)
    handles = _handles(report, shown)
    legend_columns = min(_LEGEND_COLUMNS if across == _ACROSS else 3, len(handles))
    width = max(_PANEL_INCHES[0] * across + 0.75, 5.6)
    lines = textwrap.wrap(caption, int(width * 16.5))
    below = 0.62 + 0.2 * math.ceil(len(handles) / legend_columns) + 0.15 * len(lines) + 0.1
    title = textwrap.wrap(report.title, int(width * 10.5))
    above = 0.57 + 0.18 * len(title)
    height = above + _PANEL_INCHES[1] * down + below
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    plots = figure.subplots(down, across, sharey=True, squeeze=False).flat
    figure.subplots_adjust(
        left=0.78 / width,
        right=1 - 0.15 / width,
        top=1 - above / height,
        bottom=below / height,
        wspace=0.08,
        hspace=0.38,
    )
    looks = _looks(report)
    limits = _limits(shown)
    for number, (plot, panel) in enumerate(zip(plots, shown, strict=False)):
        _panel(plot, panel, looks)
        plot.set_xlabel(axis)
        _scale(plot, limits)
        if number % across == 0:
            plot.set_ylabel(f"speed-up of {_label(report)}")
    for plot in list(plots)[len(shown) :]:
        plot.set_visible(False)
    figure.suptitle(
        "\n".join(title), x=0.15 / width, y=1 - 0.12 / height, ha="left", va="top", fontsize=11, weight="bold"
    )
    figure.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0.1 / width, (0.15 * len(lines) + 0.12) / height),
        ncols=legend_columns,
        frameon=False,
        handlelength=2.6,
        columnspacing=1.4,
    )
    figure.text(0.15 / width, 0.08 / height, "\n".join(lines), ha="left", va="bottom", fontsize=7.5, color="#444444")
    return figure


def _panel(plot: Axes, panel: Panel, looks: Mapping[str, tuple[str, str]]) -> None:
    plot.axhline(1, color="#000000", linewidth=0.9, zorder=1)
    plot.axhspan(1e-9, 1, color="#F2F2F2", linewidth=0, zorder=0)
    for curve in panel.curves:
        colour, marker = looks[curve.implementation]
        _paper_line(plot, curve, colour, marker)
        if not curve.here:
            continue
        values = [spot.speedup for spot in curve.here]
        errors = [
            [spot.speedup - (spot.low or spot.speedup) for spot in curve.here],
            [(spot.high or spot.speedup) - spot.speedup for spot in curve.here],
        ]
        plot.errorbar(
            [spot.x for spot in curve.here],
            values,
            yerr=errors,
            color=colour,
            marker=marker,
            markersize=6,
            linewidth=1.6,
            elinewidth=1,
            capsize=2,
            label=curve.label,
            zorder=3,
        )
    xs = sorted({spot.x for curve in panel.curves for spot in (*curve.here, *curve.paper)})
    plot.xaxis.set_major_locator(FixedLocator(xs))
    plot.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.3g}" if x < 1000 else f"{x:.0f}"))
    plot.margins(x=0.08)
    plot.set_title(panel.title.replace("=", " = "), fontsize=9.5 if len(panel.title) <= _SHORT_TITLE else 7.5)


def _paper_line(plot: Axes, curve: Curve, colour: str, marker: str) -> None:
    if curve.paper:
        plot.plot(
            [spot.x for spot in curve.paper],
            [spot.speedup for spot in curve.paper],
            color=colour,
            marker=marker,
            markersize=5,
            markerfacecolor="white",
            linestyle=_DASHES,
            linewidth=0.9,
            alpha=0.8,
            label=f"{curve.label}, paper",
            zorder=2,
        )


def _limits(shown: Sequence[Panel]) -> tuple[float, float]:
    """A little more than what is drawn, 1 always inside."""
    spots = [spot for panel in shown for curve in panel.curves for spot in (*curve.here, *curve.paper)]
    low, high = min(0.9, *(spot.speedup for spot in spots)), max(1.2, *(spot.speedup for spot in spots))
    # Bars of a very noisy run may leave the picture, so that they do not squeeze the curves into a line.
    lowest = max(low / _BAR_ROOM, min(low, *(spot.low or low for spot in spots)))
    highest = min(high * _BAR_ROOM, max(high, *(spot.high or high for spot in spots)))
    return lowest / 1.15, highest * 1.15


def _scale(plot: Axes, limits: tuple[float, float]) -> None:
    """Ratios on a logarithmic axis, so that half as fast and twice as fast are equally far from 1."""
    plot.set_yscale("log")
    plot.set_ylim(*limits)
    ticks = [m * 10.0**e for e in range(-3, 5) for m in (1, 2, 5) if limits[0] <= m * 10.0**e <= limits[1]]
    plot.yaxis.set_major_locator(FixedLocator(ticks))
    plot.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}x"))
    plot.yaxis.set_minor_locator(NullLocator())
    plot.yaxis.set_minor_formatter(NullFormatter())


def _looks(report: Report) -> Mapping[str, tuple[str, str]]:
    """Colour and marker of every implementation; the same in every figure for those that the suite knows."""
    names = ordered(implementation for group in report.groups for implementation in group.rows)
    unknown = [implementation for implementation in names if implementation not in _LOOKS]
    return {**_LOOKS, **{name: _SPARE[i % len(_SPARE)] for i, name in enumerate(unknown)}}


def _handles(report: Report, shown: Sequence[Panel]) -> list[Line2D]:
    looks = _looks(report)
    curves = [curve for panel in shown for curve in panel.curves]
    here = {curve.implementation for curve in curves if curve.here}
    labels = {curve.implementation: curve.label for curve in curves}
    handles = []
    for implementation, label in labels.items():
        colour, marker = looks[implementation]
        drawn = implementation in here
        handles.append(_handle(colour, marker, drawn, label if drawn else f"{label} (paper only)"))
    if any(curve.paper for curve in curves):
        handles += [_handle("#000000", "o", True, "solid: here"), _handle("#000000", "o", False, "dashed: paper")]
    return handles


def _handle(colour: str, marker: str, here: bool, label: str) -> Line2D:
    """A line of the legend: solid and filled for what was measured here, dashed and hollow for the paper."""
    return Line2D(
        [],
        [],
        color=colour,
        marker=marker,
        markersize=6 if here else 5,
        markerfacecolor=colour if here else "white",
        linewidth=1.6 if here else 0.9,
        linestyle="-" if here else _DASHES,
        label=label,
    )


def _caption(report: Report, manifest: Mapping[str, Any], total: int) -> str:
    facts = [row.facts for row in report.rows]
    timings = dict.fromkeys(f"protocol {f.protocol}, caches {f.cache}" for f in facts)
    parts = [
        f"Latency of each implementation over {_label(report)}'s; {_label(report)} is slower in the grey band",
        f"Here: {machine(manifest) or 'machine not recorded'}, {', '.join(dict.fromkeys(f.dtype for f in facts))}, "
        + " and ".join(timings),
        f"Bars: {_bars(report)}",
    ]
    if any(row.derived.paper_ratio is not None for row in report.rows):
        parts.append("Paper: Table 3, A100 80 GB, float16")
    if x_axis(report) == SHARE:
        parts.append("n_s of n_p prompt tokens are shared")
    if total > MOST_PANELS:
        parts.append(f"The first {MOST_PANELS} of {count(total, 'panel')}")
    parts += [warning for warning in report.warnings if warning.startswith("Partial")]
    return ". ".join(part.rstrip(".") for part in parts) + "."


def _bars(report: Report) -> str:
    kinds = {row.derived.ratio_kind for row in report.rows if row.derived.ratio_kind}
    said = {"range": "smallest and largest ratio of a round", "confidence": "confidence interval over rounds"}
    return " or ".join(said[kind] for kind in ("range", "confidence") if kind in kinds)


def _label(report: Report) -> str:
    return next(
        (row.facts.label for row in report.rows if row.facts.implementation == report.baseline), report.baseline
    )
