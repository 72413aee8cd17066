"""Counts, converts and shows a forest of prompts, which is given as nested lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from typing_extensions import TypeIs

from chunkbench.bench.experiment.findings import Path
from chunkbench.bench.experiment.terms import TreeNode

MAX_LEVELS = 64
"""Largest number of levels of nodes: results with deeper forests could not be written as JSON."""
_LONGEST_NESTED = 40
_LONGEST_IRREGULAR = 60

Forest = tuple[TreeNode, ...]
Children = int | tuple[int, ...] | Forest
"""The children of a node: a number of sequences, the private tokens of each sequence, or nodes."""


class Leaf(NamedTuple):
    """A node whose children are sequences, not nodes."""

    path: Path
    """Indices that lead to the node's children in the nested lists."""
    tokens: int
    """Number of tokens from the root to the end of the node."""
    sequences: int | tuple[int, ...]
    """The number of sequences, or the private tokens of each sequence."""

    @property
    def number(self) -> int:
        return self.sequences if isinstance(self.sequences, int) else len(self.sequences)


def are_sequences(children: Children) -> TypeIs[int | tuple[int, ...]]:
    return isinstance(children, int) or isinstance(children[0], int)


def leaves(forest: Forest, above: int = 0, path: Path = ()) -> Iterator[Leaf]:
    """All leaves, depth first."""
    for index, (tokens, children) in enumerate(forest):
        if are_sequences(children):
            yield Leaf((*path, index, 1), above + tokens, children)
        else:
            yield from leaves(children, above + tokens, (*path, index, 1))


def tree_paths(forest: Forest, above: int = 0, path: Path = ()) -> Iterator[tuple[Path, int]]:
    """For each node: the indices that lead to its token count, and the number of tokens from the root to its end."""
    for index, (tokens, children) in enumerate(forest):
        yield (*path, index, 0), above + tokens
        if not are_sequences(children):
            yield from tree_paths(children, above + tokens, (*path, index, 1))


def sequences_in(forest: Forest) -> int:
    return sum(leaf.number for leaf in leaves(forest))


def has_lengths(forest: Forest) -> bool:
    """Whether leaves list the private tokens of their sequences. Either all leaves of a forest do so, or none."""
    return not isinstance(next(leaves(forest)).sequences, int)


def lengths_in(forest: Forest) -> list[int]:
    """Tokens of each sequence's prompt, depth first. The forest must list private tokens."""
    return [
        leaf.tokens + private
        for leaf in leaves(forest)
        if not isinstance(leaf.sequences, int)
        for private in leaf.sequences
    ]


def nodes_in(forest: Forest) -> int:
    return sum(1 for _ in tree_paths(forest))


def tokens_in(forest: Forest) -> int:
    """Number of tokens in a forest that lists private tokens. The tokens of a shared node count once."""
    return sum(tokens + _tokens_below(children) for tokens, children in forest)


def _tokens_below(children: Children) -> int:
    if are_sequences(children):
        return 0 if isinstance(children, int) else sum(children)
    return tokens_in(children)


def resolved(forest: Forest) -> tuple[int | tuple[int, int], Forest]:
    """Convert a forest that lists private tokens to the axes `n_p` and `tree` of a point.

    If all prompts have the same length, n_p is this length, and the new tree has only numbers of sequences.
    """
    lengths = lengths_in(forest)
    shortest, longest = min(lengths), max(lengths)
    return ((shortest, longest), forest) if shortest < longest else (longest, _counted(forest))


def _counted(forest: Forest) -> Forest:
    return tuple((tokens, _counted_below(children)) for tokens, children in forest)


def _counted_below(children: Children) -> int | Forest:
    if are_sequences(children):
        return children if isinstance(children, int) else len(children)
    return _counted(children)


def shares(parents: int, nodes: int) -> list[int]:
    """Distribute `nodes` children over `parents` parents as evenly as possible. Returns the number of children of each
    parent.

    Child j belongs to parent floor(j * parents / nodes).
    """
    return [end - begin for begin, end in pairwise(-(-parent * nodes // parents) for parent in range(parents + 1))]


def show_forest(forest: Forest) -> str:
    """A forest as tables show it: `64x(64x2 0x1)`. A long forest is shortened to its levels or its size."""
    text = spell_forest(forest)
    if len(text) > _LONGEST_NESTED and (levels := _levels(forest)):
        return levels
    if len(text) <= _LONGEST_IRREGULAR:
        return text
    depth = max(len(leaf.path) for leaf in leaves(forest)) // 2
    nodes = nodes_in(forest)
    return f"{nodes} node{'s' * (nodes != 1)}, {sequences_in(forest)} sequences, depth {depth}"


def spell_forest(forest: Forest) -> str:
    """A whole forest as text: `64x(64x2 0x1)`, or `64x[40 60 5]` if it lists private tokens."""
    return " ".join(f"{tokens}x{_spell_below(children)}" for tokens, children in forest)


def _spell_below(children: Children) -> str:
    if not are_sequences(children):
        return f"({spell_forest(children)})"
    return str(children) if isinstance(children, int) else f"[{' '.join(map(str, children))}]"


def _levels(forest: Forest) -> str:
    """The levels of a balanced forest with numbers of sequences: `1x8 4x256 256`; empty for other forests."""
    level: Sequence[TreeNode] = forest
    levels: list[str] = []
    while True:
        below = [children for _, children in level]
        counts = [children for children in below if isinstance(children, int)]
        nodes = [node for children in below if not are_sequences(children) for node in children]
        sizes = counts or [len(children) for children in below if not are_sequences(children)]
        alike = len(sizes) == len(level) and len({tokens for tokens, _ in level}) == 1
        if not alike or sizes != shares(len(level), sum(sizes)):
            return ""
        levels.append(f"{len(level)}x{level[0][0]}")
        if counts:
            return " ".join([*levels, str(sum(counts))])
        level = nodes
