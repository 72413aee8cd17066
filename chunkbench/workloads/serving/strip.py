"""Draws one answer of each system. Colours show how each character came into the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from chunkbench.report.figures.style import plain
from chunkbench.report.layout import Report
from chunkbench.workloads.serving.constrained import JUMP, MASK, RETOKENIZE, answers
from chunkbench.workloads.serving.result import ConstrainedAnswers

SHOWN = (MASK, JUMP, RETOKENIZE)
WRITERS = {"the model": "#FFFFFF", "the model, without a choice": "#F2C879", "appended": "#8CC6EC"}
"""How a character came into an answer -> background colour."""
_COLUMNS, _LINES = 56, 19


class Written(NamedTuple):
    """An answer of a system, and how each character came into it."""

    system: str
    text: str
    writers: Sequence[str]
    """`[character]`: a key of `WRITERS`."""


def single_choices(state: Any, text: str) -> Iterator[bool]:
    """`[character]`: whether the constraint allowed only this character.

    `state`: result of `follow_bytes`, at the beginning of the text. This function advances `state` through the text.
    """
    from chunkbench.server.constrained.vocabulary import whole_characters

    for character in text:
        yield bool(whole_characters(state.compute_ff_bytes()))
        state.consume_tokens([*character.encode()])


def written(report: Report) -> list[Written]:
    """The first answer of each system in `SHOWN`, at the last point that has answers of this system."""
    found: dict[str, ConstrainedAnswers] = {}
    for group in report.groups:
        for name in SHOWN:
            told = answers(group.rows[name]) if name in group.rows else []
            if told and told[0].texts and told[0].spans:
                found[name] = told[0]
    return [_written(report.columns.name(name), found[name]) for name in SHOWN if name in found]


def _single_choices(regex: str, text: str) -> list[bool]:
    # Imported here because the module loads transformers, and most figures of servers have no constrained answers.
    from chunkbench.server.constrained import ConstraintRefused
    from chunkbench.server.constrained.vocabulary import follow_bytes

    try:
        return [*single_choices(follow_bytes(regex), text)]
    except (ConstraintRefused, ModuleNotFoundError):
        return [False] * len(text)


def _written(system: str, told: ConstrainedAnswers) -> Written:
    text, spans = told.texts[0], told.spans[0]
    model, alone, appended = WRITERS
    writers = [alone if choice else model for choice in _single_choices(told.regex, text)]
    for begin, end in spans:
        writers[begin:end] = [appended] * (end - begin)
    return Written(system, text, writers)


def draw(plot: Axes, answers: Sequence[Written]) -> None:
    """Draw the answers below each other, and explain the colours."""
    plot.set_axis_off()
    plot.set(xlim=(0, _COLUMNS), ylim=(_LINES, 0))
    column = 0.0
    for writer, colour in WRITERS.items():
        plot.add_patch(Rectangle((column, 0.1), 1.6, 0.8, facecolor=colour, edgecolor="#888888", linewidth=0.5))
        plot.text(column + 2.2, 0.5, writer, fontsize="x-small", va="center")
        column += 5 + 0.85 * len(writer)
    line = 1.5
    for answer in answers:
        plot.text(0, line + 0.5, answer.system, fontsize="x-small", va="center", weight="bold")
        for place, (character, writer) in enumerate(zip(answer.text, answer.writers, strict=True)):
            x, y = place % _COLUMNS, line + 1 + place // _COLUMNS
            plot.add_patch(Rectangle((x, y), 1, 1, facecolor=WRITERS[writer], linewidth=0))
            plot.text(x + 0.5, y + 0.5, plain(character), fontsize=6, family="monospace", ha="center", va="center")
        line += 1.5 + -(-len(answer.text) // _COLUMNS)
