"""Prompts of given lengths from real text, tokenised once."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from chunkbench.traffic.request import Chat, Prompt
from chunkbench.traffic.texts import Texts

Ids = tuple[int, ...]
_OWN_WORDS = 4
"""Drawn tokens at the begin of a text: no cache knows it from an earlier measurement."""


@dataclass(frozen=True)
class TextIds:
    """Token ids of texts."""

    openings: tuple[Ids, ...]
    """What requests begin with: system prompts, examples."""
    questions: tuple[Ids, ...]
    words: Ids
    """All ids that occur."""

    def draw(self, purpose: str, count: int, shared: bool) -> list[int]:
        """`count` tokens: a few drawn ones, then openings (`shared`) or questions, one after the other from a drawn one
        on, the last one cut."""
        chance = random.Random(f"text {purpose}")
        texts = self.openings if shared and self.openings else self.questions
        ids, place = chance.choices(self.words, k=_OWN_WORDS), chance.randrange(len(texts))
        while len(ids) < count:
            ids.extend(texts[place % len(texts)])
            place += 1
        return ids[:count]


def text_ids(texts: Texts, tokenizer: Path) -> TextIds:
    """The texts by a `tokenizer.json`, without special tokens. Of conversations the first turn is read."""
    from tokenizers import Tokenizer

    parts = [_parts(line[0][0], texts) for line in texts.lines]
    encode = Tokenizer.from_file(str(tokenizer)).encode_batch
    openings, questions = (
        tuple(tuple(encoded.ids) for encoded in encode(list(dict.fromkeys(said)), add_special_tokens=False))
        for said in ([opening for opening, _ in parts if opening], [question for _, question in parts])
    )
    words = dict.fromkeys(token for ids in (*openings, *questions) for token in ids)
    return TextIds(openings, tuple(filter(None, questions)), tuple(words))


def _parts(prompt: Prompt, texts: Texts) -> tuple[str, str]:
    """What a request begins with, and the question behind it, as plain text."""
    if isinstance(prompt, Chat):
        *before, last = (said["content"] for said in prompt.messages)
        return "\n".join(before), last
    assert isinstance(prompt, str)
    begun = (text for text in texts.beginnings.values() if isinstance(text, str) and prompt.startswith(text))
    opening = max(begun, default="", key=len)
    return opening, prompt.removeprefix(opening)
