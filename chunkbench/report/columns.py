"""The implementations of a run as columns of tables and lines of figures: order, headings, names, colours."""

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
"""Colours and markers for implementations that state none."""


class LineStyle(NamedTuple):
    """The lines and marks of an implementation: its family has one colour, each variant its own line and marker."""

    colour: str
    marker: str
    line: str

    def line2d(self, **changes: Any) -> dict[str, Any]:
        """The arguments of matplotlib's `plot`."""
        return {"color": self.colour, "marker": self.marker, "linestyle": self.line} | changes


@dataclass(frozen=True)
class Columns:
    """How tables and figures name and show the implementations of a run, by id."""

    labels: Mapping[str, str]
    styles: Mapping[str, Style]
    """Styles in the run's manifest."""
    installed: Callable[[str], Style]
    """Gives the style of an implementation that the manifest lacks: the run is older, or only the paper's tables have
    the implementation."""
    baseline: str = ""
    """The implementation that all others are compared with."""

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Ids in the order of columns: the baseline, the paper's implementations, then others in the order of the
        experiment."""
        return tuple(sorted(self.labels, key=lambda name: (name != self.baseline, self.style(name).column_order)))

    def style(self, implementation: str) -> Style:
        """The style of an implementation."""
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
        """The name of an implementation in running text."""
        return self.style(implementation).name or self.labels.get(implementation, implementation)

    def column(self, implementation: str, show: Callable[[T], Cell | str]) -> Column[T]:
        """The column of an implementation in a table."""
        return Column(self.name(implementation), show, self.heading(implementation))

    def heading(self, implementation: str) -> tuple[str, ...]:
        """Lines of the column's heading, each at most nine characters."""
        stated = self.style(implementation).heading
        if stated:
            return stated
        words = self.labels[implementation].replace("_", " ").replace("-", " ").split() or [implementation]
        cut = [word if len(word) <= _WIDEST_HEADING else word[: _WIDEST_HEADING - 1] + "." for word in words]
        return tuple(cut[:3])

    def competes(self, implementation: str, baseline: str) -> bool:
        """Whether an implementation competes with the baseline: it is neither the baseline nor a variant of the
        baseline."""
        return implementation != baseline and self.style(implementation).ablation_of != baseline

    def line_style(self, implementation: str) -> LineStyle:
        """The style of an implementation's lines, the same in every figure."""
        style = self.style(implementation)
        if style.colour and style.marker:
            return LineStyle(style.colour, style.marker, style.line)
        unstyled = [name for name in self.ids if not (self.style(name).colour and self.style(name).marker)]
        number = unstyled.index(implementation) if implementation in unstyled else len(unstyled)
        colour, marker = _SPARE_STYLES[number % len(_SPARE_STYLES)]
        return LineStyle(style.colour or colour, style.marker or marker, style.line)

    def legend(self) -> list[str]:
        """Explanations of the headings that differ from the label or have a meaning to add."""
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
    """The columns of a run's tables."""
    experiment = run.manifest.experiment
    labels = {case.implementation: case.label for case in run.cases}
    ordered = {name: labels[name] for name in dict.fromkeys((*experiment.implementations, *labels)) if name in labels}
    installed = workload.get(experiment.kind).implementations().style
    return Columns(ordered, run.manifest.styles, cache(installed), experiment.baseline)
