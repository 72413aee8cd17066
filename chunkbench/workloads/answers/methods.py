"""The choices of heads that experiments of `kind: answers` compare: some heads keep all tokens, the others a window."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from chunkbench.attention.windows import HeadPolicy
from chunkbench.bench.contract import YES, Answer
from chunkbench.bench.experiment.terms import Compensation, Style
from chunkbench.bench.registry import Registry
from chunkbench.server.heads import HeadScores

ALL, RETRIEVAL, RANDOM, NONE = "all_heads", "retrieval_heads", "random_heads", "no_heads"
PLAIN = "_plain"
"""Suffix of the names of choices without a compensation token."""
INDUCTION = "induction_heads"


@dataclass(frozen=True)
class HeadChoice:
    """A choice of the heads that keep all tokens. A compensation token may stand for the tokens that the other heads
    drop.
    """

    label: str
    chosen: Literal["all", "retrieval", "induction", "random", "none"]
    style: Style
    compensation: Compensation = "weighted"
    compiles: bool = False

    def availability(self, device: str) -> Answer:
        return YES if device == "cpu" else Answer(False, "caches whose heads keep windows are for CPUs")

    def policy(self, scores: HeadScores, window: int | None, seed: int) -> HeadPolicy | None:
        """The rule that says which heads of a cache keep only a window; None if all heads keep all tokens. The choice
        "random" draws as many heads as there are retrieval heads, with `seed`.
        """
        if self.chosen == "all":
            return None
        full = scores.retrieval_heads(echo=self.chosen != "induction")
        if self.chosen in ("random", "none"):
            heads = [(layer, head) for layer, heads in enumerate(full) for head in range(len(heads))]
            count = sum(map(sum, full)) if self.chosen == "random" else 0
            drawn = set(random.Random(f"heads {seed}").sample(heads, count))
            full = tuple(tuple((layer, head) in drawn for head in range(len(row))) for layer, row in enumerate(full))
        return HeadPolicy(full, window, compensation=self.compensation, compress="all")


def _pair(
    name: str, label: str, chosen: Literal["retrieval", "random", "none"], colour: str, order: int
) -> dict[str, HeadChoice]:
    words = label.split()
    plain = Style(heading=(*words, "plain"), colour=colour, marker="v", line="dashed", column_order=order - 1)
    return {
        name: HeadChoice(label, chosen, Style(heading=tuple(words), colour=colour, marker="o", column_order=order)),
        name + PLAIN: HeadChoice(f"{label}, no compensation", chosen, plain, "none"),
    }


CHOICES: Mapping[str, HeadChoice] = {
    ALL: HeadChoice(
        "all heads", "all", Style(heading=("all", "heads"), colour="#444444", marker="s", column_order=990)
    ),
    **_pair(RETRIEVAL, "retrieval heads", "retrieval", "#8C564B", 900),
    INDUCTION: HeadChoice(
        "induction heads",
        "induction",
        Style(
            heading=("induction", "heads"),
            meaning="retrieval heads without those that only the echo score finds",
            colour="#E377C2",
            marker="D",
            column_order=890,
        ),
    ),
    **_pair(RANDOM, "random heads", "random", "#0072B2", 800),
    **_pair(NONE, "no heads", "none", "#BCBD22", 700),
}

METHODS: Registry[HeadChoice] = Registry(CHOICES)
"""The implementations that experiments of `kind: answers` can name."""
