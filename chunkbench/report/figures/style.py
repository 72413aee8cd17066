"""What all figures have in common: colours, markers, the sheet that panels, legend and caption stand on."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from chunkbench.report.columns import ordered
from chunkbench.report.footer import machine
from chunkbench.report.model import Report
from chunkbench.report.numbers import count

MOST_PANELS = 9
DASHES = (0, (4, 2))
_ACROSS = 3
_PANEL_INCHES = (3.3, 2.9)
_LEGEND_COLUMNS = 5
_TITLE_LETTERS = 56

# Okabe and Ito's palette, which colour-blind readers can tell apart; markers carry the difference in grey print.
LOOKS: Mapping[str, tuple[str, str]] = {
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
    "chunk_attn": ("#000000", "o"),
    "qkv_projection": ("#0072B2", "s"),
    "self_attention": ("#D55E00", "o"),
    "mlp": ("#009E73", "^"),
    "sdpa_efficient": ("#999933", "v"),
    "cudnn": ("#117733", "h"),
    "flash_attn_package": ("#D55E00", "<"),
    "flash_attn_package_paged": ("#D55E00", "d"),
    "flash_attn_3": ("#D55E00", "8"),
    "flex_attention": ("#AA4499", ">"),
    "flashinfer_paged": ("#332288", "s"),
    "flashinfer_cascade": ("#332288", "^"),
    "flashinfer_cascade_fa3": ("#332288", "v"),
    "flashinfer_flat": ("#332288", "P"),
}
COLOURS = tuple(LOOKS.values())[:10]
_AXES: Mapping[str, str] = {
    "n_p": "prompt tokens n_p",
    "n_s": "shared prompt tokens n_s",
    "n_s / n_p": "shared part of the prompt, n_s / n_p",
    "n_c": "completion tokens n_c",
    "batch_size": "batch size b",
    "prompts": "prompts",
    "heads": "query heads h",
    "kv_heads": "KV heads",
    "head_dim": "head dimension d",
    "chunk_size": "tokens of a chunk c",
    "block_size": "tokens of a block",
    "threads": "threads",
}
_SPARE = (("#882255", "h"), ("#117733", ">"), ("#999933", "d"), ("#332288", "8"))

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


def looks(report: Report) -> Mapping[str, tuple[str, str]]:
    """Colour and marker of every implementation; the same in every figure for those that the suite knows."""
    names = ordered(implementation for group in report.groups for implementation in group.rows)
    unknown = [implementation for implementation in names if implementation not in LOOKS]
    return {**LOOKS, **{name: _SPARE[i % len(_SPARE)] for i, name in enumerate(unknown)}}


def handle(colour: str, marker: str, label: str, here: bool = True) -> Line2D:
    """A line of the legend: solid and filled for what was measured here, dashed and hollow for the paper."""
    return Line2D(
        [],
        [],
        color=colour,
        marker=marker,
        markersize=6 if here else 5,
        markerfacecolor=colour if here else "white",
        linewidth=1.6 if here else 0.9,
        linestyle="-" if here else DASHES,
        label=label,
    )


@dataclass(frozen=True)
class Sheet:
    """A figure with its panels, in reading order."""

    figure: Figure
    panels: Sequence[Axes]
    across: int

    def label(self, x: str, y: str) -> None:
        """Name the axes: x below every panel, y, which a row has in common, at its left end."""
        for number, plot in enumerate(self.panels):
            plot.set_xlabel(x)
            if number % self.across == 0:
                plot.set_ylabel(y)

    def log_ticks(self) -> None:
        """Round values on a logarithmic y-axis that all panels share."""
        limits = self.panels[0].get_ylim()
        for plot in self.panels:
            ticks_at(plot.yaxis, round_values(*limits))


def sheet(
    title: str,
    caption: str,
    handles: Sequence[Line2D],
    panels: int,
    across: int = _ACROSS,
    share_y: bool = True,
    right_axis: bool = False,
) -> Sheet:
    """As many empty panels, under a title and over the legend and the caption; `right_axis` leaves room for one."""
    across = min(across, panels)
    down = math.ceil(panels / across)
    columns = min(_LEGEND_COLUMNS if across == _ACROSS else 3, max(1, len(handles)))
    apart = right_axis or not share_y
    gap = 0.55 if apart else 0.0  # room for the labels of an axis of its own
    width = max((_PANEL_INCHES[0] + gap) * across + 0.75, 5.6)
    lines = textwrap.wrap(caption, int(width * 16.5))
    below = 0.62 + 0.2 * math.ceil(len(handles) / columns) + 0.15 * len(lines) + 0.1
    title_lines = textwrap.wrap(title, int(width * 10.5))
    above = 0.57 + 0.18 * len(title_lines)
    height = above + _PANEL_INCHES[1] * down + below
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    plots = list(figure.subplots(down, across, sharey=share_y, squeeze=False).flat)
    figure.subplots_adjust(
        left=0.78 / width,
        right=1 - (0.65 if right_axis else 0.15) / width,
        top=1 - above / height,
        bottom=below / height,
        wspace=0.28 if apart else 0.08,
        hspace=0.38,
    )
    for plot in plots[panels:]:
        plot.set_visible(False)
    figure.suptitle(
        "\n".join(title_lines), x=0.15 / width, y=1 - 0.12 / height, ha="left", va="top", fontsize=11, weight="bold"
    )
    if handles:
        figure.legend(
            handles=handles,
            loc="lower left",
            bbox_to_anchor=(0.1 / width, (0.15 * len(lines) + 0.12) / height),
            ncols=columns,
            frameon=False,
            handlelength=2.6,
            columnspacing=1.4,
        )
    text = "\n".join(lines)
    figure.text(0.15 / width, 0.08 / height, text, ha="left", va="bottom", fontsize=7.5, color="#444444")
    return Sheet(figure, plots[:panels], across)


def panel_title(plot: Axes, title: str) -> None:
    """Axes in words above a panel, small where they are many, cut short where they would not fit."""
    words = textwrap.shorten(title.replace("=", " = "), _TITLE_LETTERS, placeholder=" ...")
    plot.set_title(words, fontsize=9.5 if len(words) <= 30 else 7.5)


def axis_label(axis: str) -> str:
    """An axis of experiments in words, for readers who do not know its name."""
    return _AXES.get(axis, axis)


def ticks_at(axis: Axis, values: Iterable[float], unit: str = "") -> None:
    """Ticks where there is something, or where a reader expects them, and nowhere else."""
    axis.set_major_locator(FixedLocator(sorted(set(values))))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}{unit}" if value < 1000 else f"{value:.0f}"))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def round_values(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten from low to high: ticks of a logarithmic axis."""
    return [m * 10.0**e for e in range(-6, 13) for m in (1, 2, 5) if low <= m * 10.0**e <= high]


def conditions(report: Report, manifest: Mapping[str, Any], timed: bool = True) -> str:
    """Machine, data type and how it was timed, for a caption."""
    facts = [row.facts for row in report.rows]
    parts = [machine(manifest) or "machine not recorded", ", ".join(dict.fromkeys(f.dtype for f in facts))]
    if timed:
        for word, found in (("protocol", [f.protocol for f in facts]), ("caches", [f.cache for f in facts])):
            parts.append(f"{word} {' and '.join(dict.fromkeys(found))}")
    return "Here: " + ", ".join(parts)


def left_out(total: int) -> list[str]:
    """That panels are missing, for a caption; nothing where all `total` are there."""
    return [f"The first {MOST_PANELS} of {count(total, 'panel')}"] if total > MOST_PANELS else []


def caption(parts: Iterable[str], report: Report) -> str:
    """Sentences of a caption; a partial run says so in its figure, too."""
    said = [*parts, *(warning for warning in report.warnings if warning.startswith("Partial"))]
    return ". ".join(part.rstrip(".") for part in said) + "."
