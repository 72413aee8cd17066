"""Finds the prefixes that the prompts of a load share, to send them before the clock starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, zip_longest
from typing import Any

from chunkbench.attention.tokens import alike
from chunkbench.traffic.request import Chat, Prompt

LEAST = {tuple: 16, str: 64, Chat: 1}
"""Kind of prompt -> the shortest prefix that counts: in tokens, in characters, in messages. Shorter ones may be equal
by chance."""


def shared_prefixes(prompts: Sequence[Prompt], most: int) -> list[Prompt]:
    """The prefixes that several prompts share, each as a prompt. Those of most prompts come first, at most `most`.

    A prompt's prefix is the longest one that it shares with any other prompt. A prefix is left out if a longer one
    begins with it. Raises ValueError if no prefix is long enough.
    """
    found: list[tuple[int, Prompt]] = []
    for kind, least in LEAST.items():
        ordered = sorted(_items(prompt) for prompt in prompts if isinstance(prompt, kind))
        common = [0, *(alike(one, other) for one, other in pairwise(ordered)), 0]
        longest = [max(pair) for pair in pairwise(common)]
        counted = Counter(items[:length] for items, length in zip(ordered, longest, strict=False) if length >= least)
        names = sorted(counted)
        for name, longer in zip_longest(names, names[1:]):
            if longer is None or longer[: len(name)] != name:
                found.append((counted[name], _prompt(name, kind)))
    if not found:
        raise ValueError("the prompts share no prefix of 16 tokens, 64 characters or a message; leave --prime out")
    found.sort(key=lambda entry: -entry[0])
    return [prompt for _, prompt in found[:most]]


def _items(prompt: Prompt) -> tuple[Any, ...] | str:
    """The prompt as a sequence whose beginnings can be compared."""
    if isinstance(prompt, Chat):
        return tuple((said["role"], said["content"]) for said in prompt.sent)
    return prompt


def _prompt(items: tuple[Any, ...] | str, kind: type) -> Prompt:
    if kind is Chat and isinstance(items, tuple):
        return Chat(tuple({"role": role, "content": content} for role, content in items))
    return items
