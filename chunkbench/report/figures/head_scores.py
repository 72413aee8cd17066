"""Draws scores of the attention heads of a model: the echo score and the induction score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chunkbench.report.figures.style import sheet, styled

_SCORES = {"echo": "echo: to the same token", "induction": "induction: to what came after it"}


def write_picture(path: Path, scores: Mapping[str, Any], full: Sequence[Sequence[bool]]) -> None:
    """Draw the scores: one panel for each kind of score, with a row for each layer and a column for each head.

    `scores`: entries "model" and "tokens", and for each kind of score `[layer][query head]`. `full`: `[layer][KV
    head]`, whether the head is a retrieval head. Raises OSError."""
    with styled():
        words = f"{scores['model']}: {scores['tokens']} random tokens, read four times; framed: retrieval heads"
        page = sheet(words, [], len(_SCORES), across=2, colour_bar=True)
        most = max(max(map(max, scores[name])) for name in _SCORES)
        for plot, (name, title) in zip(page.panels, _SCORES.items(), strict=True):
            image = plot.imshow(scores[name], aspect="auto", cmap="viridis", vmin=0, vmax=most, origin="lower")
            group = len(scores[name][0]) // len(full[0])
            for layer, heads in enumerate(full):
                for head, is_full in enumerate(heads):
                    if is_full:
                        place = [head * group - 0.5, layer - 0.5]
                        plot.add_patch(_frame(place, group))
            plot.set_title(title, fontsize="small")
            plot.grid(False)
        page.label("query head", "layer")
        last = page.panels[-1].get_position()
        axes = page.figure.add_axes((last.x1 + 0.02, last.y0, 0.015, last.height))
        page.figure.colorbar(image, cax=axes, label="share of the attention")
        page.figure.savefig(path, dpi=160, metadata={"Software": None})


def _frame(place: list[float], width: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((place[0], place[1]), width, 1, fill=False, edgecolor="#D55E00", linewidth=1.2)
