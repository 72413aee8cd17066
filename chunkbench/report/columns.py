"""How the implementations of a run appear in tables and figures: order, headings, names, colours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple, TypeVar

from chunkbench.bench import workload
from chunkbench.bench.experiment.terms import Style
from chunkbench.bench.store import Run
from chunkbench.report.model import Cell, Column

T = TypeVar("T")
_WIDEST_HEADING = 9
_SPARE_STYLES = (("#882255", "h"), ("#117733", ">"), ("#999933", "d"), ("#332288", "8"))
"""Colours and markers for implementations that name none."""


class LineStyle(NamedTuple):
    """How figures draw an implementation. Variants of one implementation have one colour, but different lines and
    markers."""

    colour: str
    marker: str
    line: str

    def line2d(self, **changes: Any) -> dict[str, Any]:
        """Keyword arguments for matplotlib's `plot`."""
        return {"color": self.colour, "marker": self.marker, "linestyle": self.line} | changes


@dataclass(frozen=True)
class Columns:
    """How the implementations of a run appear in tables and figures. Keys and arguments are ids of implementations."""

    labels: Mapping[str, str]
    styles: Mapping[str, Style]
    installed: Callable[[str], Style]
    """Returns the style of an implementation whose style the run did not record: runs of old versions record none, and
    some implementations appear only in the paper's tables."""
    baseline: str = ""
    """Id of the implementation that all others are compared with."""

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """All ids in the order of columns: the baseline, then the paper's implementations, then the others as in the
        experiment."""
        return tuple(sorted(self.labels, key=lambda name: (name != self.baseline, self.style(name).column_order)))

    def style(self, implementation: str) -> Style:
        recorded = self.styles.get(implementation)
        if recorded is not None and "line" in recorded.model_fields_set:
            return recorded
        installed = self.installed(implementation)
        if recorded is None or installed == Style():
            return recorded or installed
        # The run is older than the lines of figures. Old and new runs shall be drawn alike.
        drawn = {"colour": installed.colour, "marker": installed.marker, "line": installed.line}
        return recorded.model_copy(update=drawn)

    def name(self, implementation: str) -> str:
        """The name of the implementation in sentences."""
        return self.style(implementation).name or self.labels.get(implementation, implementation)

    def column(self, implementation: str, show: Callable[[T], Cell | str]) -> Column[T]:
        return Column(self.name(implementation), show, self.heading(implementation))

    def heading(self, implementation: str) -> tuple[str, ...]:
        """The lines of the column's heading. If the style has no heading, it is made from the label: at most three
        lines of nine characters."""
        stated = self.style(implementation).heading
        if stated:
            return stated
        words = self.labels[implementation].replace("_", " ").replace("-", " ").split() or [implementation]
        cut = [word if len(word) <= _WIDEST_HEADING else word[: _WIDEST_HEADING - 1] + "." for word in words]
        return tuple(cut[:3])

    def competes(self, implementation: str, baseline: str) -> bool:
        """Whether the implementation is neither the baseline nor a variant of the baseline."""
        return implementation != baseline and self.style(implementation).ablation_of != baseline

    def line_style(self, implementation: str) -> LineStyle:
        """How figures draw the implementation. All figures draw it in the same way."""
        style = self.style(implementation)
        if style.colour and style.marker:
            return LineStyle(style.colour, style.marker, style.line)
        unstyled = [name for name in self.ids if not (self.style(name).colour and self.style(name).marker)]
        number = unstyled.index(implementation) if implementation in unstyled else len(unstyled)
        colour, marker = _SPARE_STYLES[number % len(_SPARE_STYLES)]
        return LineStyle(style.colour or colour, style.marker or marker, style.line)

    def legend(self) -> list[str]:
        """One line for each heading that needs an explanation: it differs from the label, or the style states a
        meaning."""
        lines = []
        for implementation in self.ids:
            label, heading = self.labels[implementation], " ".join(self.heading(implementation))
            same = heading.replace(" ", "") == label.replace(" ", "")
            parts = ("" if same else label, self.style(implementation).meaning)
            text = ": ".join(part for part in parts if part)
            if text:
                lines.append(f"{label if same else heading} = {text}")
        return lines


def columns_of(run: Run) -> Columns:
    experiment = run.manifest.experiment
    labels = {case.implementation: case.label for case in run.cases}
    ordered = {name: labels[name] for name in dict.fromkeys((*experiment.implementations, *labels)) if name in labels}
    installed = workload.get(experiment.kind).implementations().style
    return Columns(ordered, run.manifest.styles, cache(installed), experiment.baseline)
