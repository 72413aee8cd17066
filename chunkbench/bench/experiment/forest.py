"""A forest of prompts: which tokens sequences share, and which axes contradict each other."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, cast

from chunkbench.bench.experiment.findings import Finding
from chunkbench.bench.experiment.terms import TreeNode
from chunkbench.bench.experiment.tree import Forest, are_sequences, has_lengths, tree_paths
from chunkbench.bench.experiment.values import LengthRange, Share

MAX_INDEX = (1 << 31) - 1
"""Largest number of tokens of all sequences together, because kernels count tokens in 32 bits."""


class PromptSegment(NamedTuple):
    """Consecutive tokens of a prompt. If sequences share the tokens, their segments have the same id."""

    id: int
    tokens: int


def prompt_lengths(n_p: int | tuple[int, int], batch_size: int, seed: int) -> list[int]:
    """Number of tokens of each sequence's prompt. If `n_p` is a range (low, high), `seed` decides random lengths from
    low to high, both included."""
    if isinstance(n_p, int):
        return [n_p] * batch_size
    low, high = n_p
    rng = random.Random(f"lengths {seed}")
    return [rng.randint(low, high) for _ in range(batch_size)]


def prompt_paths(
    lengths: Sequence[int], n_s: int | None, prompts: int, tree: tuple[TreeNode, ...] | None
) -> list[list[PromptSegment]]:
    """The prompt of each sequence as a path of segments, in the order in which sequences are added.

    `lengths`: tokens of each prompt. Without a `tree`, there are `prompts` shared prefixes of `n_s` tokens each, and
    sequence k has prefix `k mod prompts`. Empty segments are left out. The last segment of a path is private unless the
    whole prompt is shared.
    """
    ids = iter(range(1 << 30))
    if tree is None:
        roots = [PromptSegment(next(ids), n_s or 0) for _ in range(prompts)]
        shared: list[Sequence[PromptSegment]] = [[roots[k % prompts]] for k in range(len(lengths))]
    else:
        shared = [path for node in tree for path in walk_tree(node, (), ids)]
    paths = []
    for path, length in zip(shared, lengths, strict=True):
        private = length - sum(segment.tokens for segment in path)
        whole = [*path, PromptSegment(next(ids), private)]
        paths.append([segment for segment in whole if segment.tokens > 0])
    return paths


def walk_tree(
    node: TreeNode, above: tuple[PromptSegment, ...], ids: Iterator[int]
) -> Iterator[Sequence[PromptSegment]]:
    """The path of shared segments of each sequence below a node, depth first."""
    tokens, children = node
    path = (*above, PromptSegment(next(ids), tokens))
    if are_sequences(children):
        for _ in range(children if isinstance(children, int) else len(children)):
            yield path
    else:
        for child in children:
            yield from walk_tree(child, path, ids)


def prompt_conflicts(given: Mapping[str, Any], sequences: int, prompts: int) -> Iterator[Finding]:
    """Contradictions among the axes that describe prompts. The path of a finding begins with the axis to blame.

    `given` has n_p, n_c, and n_s or a tree. `sequences` and `prompts` are the numbers of sequences and of shared
    prefixes.
    """
    n_p = given["n_p"]
    shortest, longest = (n_p.low, n_p.high) if isinstance(n_p, LengthRange) else (n_p, n_p)
    prompt = f"the shortest prompt, n_p low = {shortest}" if isinstance(n_p, LengthRange) else f"n_p = {n_p}"
    if "tree" in given:
        yield from _tree_conflicts(given, shortest, prompt)
    else:
        yield from _share_conflicts(given["n_s"], n_p, shortest, prompt)
    if prompts > sequences:
        message = f"{prompts} is larger than batch_size = {sequences}: some prompts would have no sequence"
        yield Finding(("prompts",), message)
    tokens = sequences * (longest + given["n_c"])
    if tokens > MAX_INDEX:
        yield Finding(("n_p",), f"batch_size * (n_p + n_c) = {tokens} tokens; more than {MAX_INDEX} cannot be indexed")


def _share_conflicts(n_s: int | Share, n_p: Any, shortest: int, prompt: str) -> Iterator[Finding]:
    shared, text = (n_s.tokens(n_p), n_s.text) if isinstance(n_s, Share) else (Fraction(n_s), str(n_s))
    if shared is None:
        yield Finding(("n_s",), f"{text!r} is a share of n_p, so n_p must be one number, not a range")
    elif shared.denominator != 1:
        message = f"{text!r} of n_p = {n_p} is {float(shared):g} tokens; it must be a whole number of tokens"
        yield Finding(("n_s",), message)
    elif shared > shortest:
        yield Finding(("n_s",), f"{text} is larger than {prompt}: shared tokens are part of the prompt")


def _tree_conflicts(given: Mapping[str, Any], shortest: int, prompt: str) -> Iterator[Finding]:
    forest = cast(Forest, given["tree"])
    for axis in ("n_s", "prompts"):
        if axis in given:
            yield Finding((axis,), "cannot be used together with tree, which replaces it; keep one", True)
    for path, tokens in () if has_lengths(forest) else tree_paths(forest):
        if tokens > shortest:
            yield Finding(("tree", *path), f"{tokens} tokens down to here are more than {prompt}")
