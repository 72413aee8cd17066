"""Parts that all figures share: colours, markers, and a sheet with panels, legend and caption."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from chunkbench.bench.analysis.derive import Group
from chunkbench.bench.experiment.axes import AXES
from chunkbench.bench.experiment.values import show_value
from chunkbench.bench.store import Manifest
from chunkbench.bench.store.results import TimedResult
from chunkbench.report.columns import LineStyle
from chunkbench.report.layout import Report
from chunkbench.report.model import legal
from chunkbench.report.numbers import count

MOST_PANELS = 9
DASHES = (0, (4, 2))
DOTS = (0, (1, 2))
_ACROSS = 3
_PANEL_INCHES = (3.3, 2.9)
_LEGEND_COLUMNS = 5
_TITLE_LETTERS = 57

# Okabe and Ito's palette, which colour-blind readers can tell apart; in grey print the markers differ.
PALETTE = (
    ("#555555", "o"),
    ("#CC79A7", "v"),
    ("#D55E00", "^"),
    ("#56B4E9", "s"),
    ("#0072B2", "D"),
    ("#56B4E9", "P"),
    ("#0072B2", "*"),
    ("#009E73", "X"),
    ("#882255", "<"),
    ("#E69F00", "p"),
)
"""Colours and markers of lines that show no implementation."""

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

StyleName = Literal["screen", "paper"]


@dataclass(frozen=True)
class Layout:
    scale: float
    """Factor on all sizes. With 1, a figure has the sizes that the code states."""
    least_inches: float
    """Smallest width of a figure, in inches."""
    captioned: bool
    """Whether the caption is printed in the figure."""
    spacing: float = 1.0
    """Factor on the height of the space below the panels."""
    settings: dict[Any, Any] = field(default_factory=dict)
    """Settings of matplotlib, besides `STYLE`."""


LAYOUTS: dict[StyleName, Layout] = {
    "screen": Layout(1.0, 5.6, True),
    # A column of a two-column page; three panels take both columns. Fonts are embedded, as publishers ask.
    "paper": Layout(
        0.68,
        3.33,
        False,
        1.35,
        {
            "font.size": 6.5,
            "font.family": "serif",
            "mathtext.fontset": "dejavuserif",
            "pdf.fonttype": 42,
            "lines.linewidth": 1.0,
            "axes.linewidth": 0.6,
        },
    ),
}
_LAYOUT: ContextVar[Layout] = ContextVar("layout", default=LAYOUTS["screen"])


@contextmanager
def styled(name: StyleName = "screen") -> Iterator[None]:
    """Inside this block, figures are drawn and saved in the style `name`. The user's `matplotlibrc` is ignored."""
    layout = LAYOUTS[name]
    token = _LAYOUT.set(layout)
    try:
        with mpl.rc_context():
            mpl.rcdefaults()
            mpl.rcParams.update({**STYLE, **layout.settings})
            yield
    finally:
        _LAYOUT.reset(token)


def plain(text: str) -> str:
    """Escape a text so that matplotlib shows it unchanged. Control characters are replaced, because an SVG cannot hold
    them."""
    return legal(text).replace("$", r"\$")


def handle(style: LineStyle, label: str, here: bool = True) -> Line2D:
    """Make a line for the legend. For measured values (`here`), it has filled markers. For the paper's values, it is
    thin and dotted, with hollow markers."""
    return Line2D([], [], label=label, **(style.line2d(markersize=6, linewidth=1.6) if here else paper_line(style)))


def paper_line(style: LineStyle) -> dict[str, Any]:
    """Keyword arguments of matplotlib's `plot` for a line with the paper's values."""
    return style.line2d(markersize=5, markerfacecolor="white", linewidth=0.9, linestyle=DOTS)


@dataclass(frozen=True)
class Sheet:
    """A figure and its panels, in reading order."""

    figure: Figure
    panels: Sequence[Axes]
    across: int

    def label(self, x: str, y: str) -> None:
        """Label the x-axis of every panel, and the y-axis of the first panel of each row."""
        for number, plot in enumerate(self.panels):
            plot.set_xlabel(x)
            if number % self.across == 0:
                plot.set_ylabel(y)

    def log_ticks(self) -> None:
        """Put ticks at round values of the y-axis. It must be logarithmic and shared by all panels."""
        limits = self.panels[0].get_ylim()
        for plot in self.panels:
            ticks_at(plot.yaxis, round_values(*limits))


def sheet(
    caption: str,
    handles: Sequence[Line2D],
    panels: int,
    across: int = _ACROSS,
    share_y: bool = True,
    right_axis: bool = False,
    colour_bar: bool = False,
) -> Sheet:
    """Make a figure with empty panels, a legend and a caption, in the style that `styled` has set.

    `right_axis` leaves space for a y-axis at the right of each panel, `colour_bar` for a colour bar at the right of the
    figure.
    """
    layout = _LAYOUT.get()
    caption = caption.replace(r"\$", "$")  # its names are `plain`
    across = min(across, panels)
    down = math.ceil(panels / across)
    columns = min(_LEGEND_COLUMNS if across == _ACROSS else 3, max(1, len(handles)))
    own_axes = right_axis or not share_y
    gap = 0.55 if own_axes else 0.0  # room for the labels of each panel's own y-axis
    bar = 1.05 if colour_bar else 0.0
    width = max((_PANEL_INCHES[0] + gap) * across + 0.75 + bar, layout.least_inches / layout.scale)
    lines = textwrap.wrap(caption, int(width * 16.5)) if layout.captioned else []
    below = 0.62 * layout.spacing + 0.2 * math.ceil(len(handles) / columns) + 0.15 * len(lines) + 0.1
    above = 0.4
    height = above + _PANEL_INCHES[1] * down + below
    figure = Figure(figsize=(width * layout.scale, height * layout.scale))
    FigureCanvasAgg(figure)
    plots = list(figure.subplots(down, across, sharey=share_y, squeeze=False).flat)
    figure.subplots_adjust(
        left=0.78 / width,
        right=1 - (0.75 if right_axis else 0.15 + bar) / width,
        top=1 - above / height,
        bottom=below / height,
        wspace=0.28 if own_axes else 0.08,
        hspace=0.38,
    )
    for plot in plots[panels:]:
        plot.set_visible(False)
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
    if lines:
        text = plain("\n".join(lines))
        figure.text(0.15 / width, 0.08 / height, text, ha="left", va="bottom", fontsize=7.5, color="#444444")
    figure.set_label(caption)  # the page shows it below the picture
    return Sheet(figure, plots[:panels], across)


Values = tuple[tuple[str, str], ...]
"""(name of an axis, its value as text) for each axis."""


def values(axes: Mapping[str, Any], names: Iterable[str]) -> Values:
    """Names and values of the axes `names`, for the title of a panel. Axes without a value are left out."""
    return tuple((name, show_value(axes[name])) for name in names if axes.get(name) is not None)


def by_values(groups: Iterable[Group], names: Sequence[str]) -> dict[Values, list[Group]]:
    """Collect the groups for each panel: groups in one panel have equal values of the axes `names`."""
    found: dict[Values, list[Group]] = {}
    for group in groups:
        found.setdefault(values(group.axes, names), []).append(group)
    return found


def panel_title(plot: Axes, title: Values = (), words: str = "") -> None:
    """Set the title of a panel: `words`, then axes with the symbols of the paper. A long title gets a small font.
    Values that do not fit are left out."""
    shown, letters = [plain(words)] if words else [], len(words)
    for name, value in title:
        letters += len(f"{name}={value} ")
        if letters > _TITLE_LETTERS:
            shown.append("..." if shown else f"{name} = ...")
            break
        symbol = AXES[name].symbol if name in AXES else ""
        shown.append(f"${symbol} = {value}$" if symbol and value.isdecimal() else f"{name} = {plain(value)}")
    plot.set_title(", ".join(shown), fontsize="medium" if letters <= 31 else "x-small")


def axis_label(axis: str) -> str:
    """The name of an axis in words, and its symbol."""
    if axis not in AXES:
        return axis
    known = AXES[axis]
    return f"{known.label} ${known.symbol}$" if known.symbol else known.label


def sharing(most: bool) -> dict[str, Any]:
    """Keyword arguments of matplotlib's `plot` for the line of one shared length. `most`: whether this is the longest
    shared length. Its line is thick with filled markers; other lines are thin with hollow markers."""
    return {"linewidth": 1.6} if most else {"linewidth": 0.8, "markerfacecolor": "white"}


_MOST_TICKS = 20
"""Labels of more ticks would cover each other, and draw slowly."""


def ticks_at(axis: Axis, values: Iterable[float], unit: str = "") -> None:
    """Put ticks at these values, or at every second, third, ... of many, and nowhere else."""
    places = sorted(set(values))
    axis.set_major_locator(FixedLocator(places[:: -(-len(places) // _MOST_TICKS) or 1]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}{unit}" if value < 1000 else f"{value:.0f}"))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def round_values(low: float, high: float) -> list[float]:
    """All values from low to high that are 1, 2 or 5 times a power of ten."""
    return [m * 10.0**e for e in range(-6, 13) for m in (1, 2, 5) if low <= m * 10.0**e <= high]


def conditions(report: Report, manifest: Manifest, timed: bool = True) -> str:
    """Text for a caption: the machine and the dtype, and if `timed` also the protocol and the caches."""
    facts = [row.facts for row in report.rows]
    machines = " and ".join(manifest.machine_names) or "machine not recorded"
    parts = [machines, ", ".join(dict.fromkeys(f.dtype for f in facts))]
    rounds = [result for result in facts if isinstance(result, TimedResult)]
    if timed and rounds:
        for name, values in (("protocol", [f.protocol for f in rounds]), ("caches", [f.cache for f in rounds])):
            parts.append(f"{name} {' and '.join(dict.fromkeys(values))}")
    return "Here: " + ", ".join(parts)


def left_out(total: int) -> list[str]:
    """A sentence for the caption which says that panels are left out. Empty if all `total` panels fit."""
    return [f"The first {MOST_PANELS} of {count(total, 'panel')}"] if total > MOST_PANELS else []


def caption(parts: Iterable[str], report: Report) -> str:
    """Join these parts to a caption. If the run is partial, the caption says so."""
    sentences = [*parts, *report.partial]
    return ". ".join(sentence.rstrip(".") for sentence in sentences) + "."
