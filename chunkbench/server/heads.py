"""Retrieval heads of a model: heads that attend to earlier occurrences of a token (RazorAttention, arXiv
2407.15891)."""

from __future__ import annotations

import json
from math import ceil
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, FiniteFloat, PositiveInt, ValidationError

from chunkbench.attention.windows import Compress, HeadPolicy
from chunkbench.text_file import TextError, from_json, problem_of, read_text

REPEATS = 4
"""The test repeats the random tokens until they occur this many times."""
PAPERS_TOKENS = 2500
INDUCTION_SHARE, ECHO_SHARE = 0.14, 0.01
"""Shares of all KV heads that become retrieval heads: for their induction scores, and for their echo scores."""

Scores = tuple[tuple[FiniteFloat, ...], ...]
"""`[layer][head]`: one score per head."""


_AGAIN = "make it again with `chunkbench find-heads MODEL`"


class HeadsError(ValueError):
    """A file with scores of heads is not valid, or belongs to another model."""


class HeadScores(BaseModel):
    """Results of the test: an echo score and an induction score for each query head. A score is a mean over the
    repeated tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    tokens: PositiveInt
    """Number of random tokens. The model reads all of them `REPEATS` times."""
    kv_heads: PositiveInt
    echo: Scores
    """How much attention goes to earlier occurrences of the same token, from 0 to 1."""
    induction: Scores
    """How much attention goes to the tokens after earlier occurrences of the same token, from 0 to 1."""

    def of_kv_heads(self, scores: Scores) -> Scores:
        """Scores of query heads -> scores of KV heads. A KV head gets the largest score of its query heads."""
        group = len(scores[0]) // self.kv_heads
        return tuple(tuple(max(layer[i : i + group]) for i in range(0, len(layer), group)) for layer in scores)

    def retrieval_heads(self, echo: bool = True) -> tuple[tuple[bool, ...], ...]:
        """`[layer][KV head]`: True for a retrieval head. These are the heads of all layers with the best induction
        scores. With `echo`, the heads with the best echo scores are added. Both numbers of heads are rounded up."""
        chosen = _best(self.of_kv_heads(self.induction), INDUCTION_SHARE)
        if echo:
            chosen |= _best(self.of_kv_heads(self.echo), ECHO_SHARE)
        return tuple(tuple((layer, head) in chosen for head in range(self.kv_heads)) for layer in range(len(self.echo)))

    def policy(self, window: int | None = None, compress: Compress = "own") -> HeadPolicy:
        """A policy under which retrieval heads keep all tokens, and other heads keep a window."""
        return HeadPolicy(self.retrieval_heads(), window, compress=compress)

    def check(self, path: Path, layers: int, heads: int, kv_heads: int) -> None:
        """Raise HeadsError if the scores belong to a model with other numbers of layers or heads. The message names
        `path`."""
        own = len(self.echo), len(self.echo[0]), self.kv_heads
        if own != (layers, heads, kv_heads):
            sizes = [
                "{} layers of {} heads and {} KV heads".format(*numbers) for numbers in (own, (layers, heads, kv_heads))
            ]
            raise HeadsError(f"{path}: is for {self.model}, with {sizes[0]}; this model has {sizes[1]}; {_AGAIN}")

    def problem(self) -> str:
        """Text that says why the lists of scores have a wrong shape; empty if the shape is right."""
        widths = {len(layer) for scores in (self.echo, self.induction) for layer in scores}
        if len(self.echo) != len(self.induction) or len(widths) != 1 or 0 in widths:
            return "echo, induction: must have one score for each head of each layer"
        if widths.pop() % self.kv_heads:
            return f"kv_heads: {self.kv_heads} does not divide the number of heads"
        return ""

    def named(self) -> list[list[int]]:
        """`[layer, KV head]` of each retrieval head."""
        full = self.retrieval_heads()
        return [[layer, head] for layer, heads in enumerate(full) for head, is_full in enumerate(heads) if is_full]

    def as_json(self) -> str:
        """The text of a file with the scores and the retrieval heads."""
        named = self.named()
        lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in self.model_dump().items()]
        return "{\n" + ",\n".join([*lines, f'  "retrieval": {json.dumps(named)}']) + "\n}\n"


def read_heads(path: Path) -> HeadScores:
    """Read a file that `HeadScores.as_json` wrote. Raises HeadsError."""
    try:
        values: Any = from_json(read_text(path))
    except TextError as error:
        raise HeadsError(str(error)) from None
    except ValueError as error:
        raise HeadsError(f"{path}: {error}") from None
    if not isinstance(values, dict):
        raise HeadsError(f"{path}: not a file of scores of heads; `chunkbench find-heads MODEL` writes one")
    named = values.pop("retrieval", None)
    try:
        scores = HeadScores.model_validate(values)
    except ValidationError as error:
        problem = problem_of(error.errors()[0], "file")
        raise HeadsError(f"{path}: {problem}; {_AGAIN}") from None
    if problem := scores.problem():
        raise HeadsError(f"{path}: {problem}; {_AGAIN}")
    if named not in (None, scores.named()):
        raise HeadsError(f"{path}: retrieval: does not agree with the scores; {_AGAIN}")
    return scores


def _best(scores: Scores, share: float) -> set[tuple[int, int]]:
    ranked = sorted(
        ((score, -layer, -head) for layer, heads in enumerate(scores) for head, score in enumerate(heads)), reverse=True
    )
    return {(-layer, -head) for _, layer, head in ranked[: ceil(round(share * len(ranked), 9))]}
