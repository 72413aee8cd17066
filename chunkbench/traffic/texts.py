"""Requests with real text: plain text, chats, conversations with the server's own answers, and prompts of given
lengths."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import cycle
from pathlib import Path
from random import SystemRandom
from string import ascii_lowercase
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from chunkbench.text_file import TextError, decode, read_text
from chunkbench.traffic.formats import json_lines, parsed, validated
from chunkbench.traffic.request import Chat, Message, PlannedRequest, Prompt
from chunkbench.traffic.trace import TraceError

MOST_ANSWER_TOKENS = 512
"""Maximum number of tokens of an answer that the model may end itself."""
LONGEST_DELAY_S = 86_400.0
_CONTROL_TOKENS = 4
"""Number of token ids that `control` replaces at the beginning of a prompt. With four ids, two calls hardly ever draw
the same beginning."""

_Text = Annotated[str, Field(min_length=1)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class _Message(_Part):
    role: _Text
    content: _Text


class _Turn(_Part):
    model_config = ConfigDict(extra="forbid")

    text: _Text
    delay: float = Field(0.0, ge=0, le=LONGEST_DELAY_S)


class _Line(_Part):
    """A line of the file. Other fields are ignored."""

    name: _Text | None = None
    begin: _Text | None = None
    text: _Text | None = None
    prompt: _Text | None = None
    messages: Annotated[tuple[_Message, ...], Field(strict=False)] = ()
    turns: Annotated[tuple[_Turn, ...], Field(strict=False)] = ()

    def prompts(self) -> list[tuple[Prompt, float]]:
        """Each prompt of the line, with the seconds to wait after the answer to the prompt before. Raises
        ValueError."""
        texts = [text for text in (self.text, self.prompt) if text is not None]
        if len(texts) + bool(self.messages or self.turns) != 1:
            raise ValueError("must have one of text, prompt, messages or turns (messages may stand before turns)")
        if texts:
            return [(texts[0], 0.0)]
        if self.turns and self.turns[0].delay:
            raise ValueError("turns.0.delay: no answer comes before the first turn; leave it out")
        messages: tuple[Message, ...] = tuple(message.model_dump() for message in self.messages)
        if not self.turns:
            return [(Chat(messages), 0.0)]
        prompts: list[tuple[Prompt, float]] = []
        for turn in self.turns:
            prompts.append((Chat((*messages, {"role": "user", "content": turn.text})), turn.delay))
            messages = ()
        return prompts


@dataclass(frozen=True)
class Texts:
    """The content of a file of texts."""

    beginnings: dict[str, Prompt]
    """Name -> text or messages with which several requests begin."""
    lines: tuple[tuple[tuple[Prompt, float], ...], ...]
    """For each line of the file: its request, or the requests of its conversation. Each request has the seconds to
    wait after the previous answer. The first request of a line includes its shared beginning."""

    def plan(self, dues: Sequence[float], max_tokens: int | None) -> list[PlannedRequest]:
        """Plan the first lines, one for each due time. `max_tokens`: number of tokens of every answer. None: the
        model ends the answers itself."""
        plan: list[PlannedRequest] = []
        for due, line in zip(dues, self.lines, strict=False):
            after = None
            for prompt, delay in line:
                time = due if after is None else delay
                plan.append(
                    PlannedRequest(time, prompt, max_tokens or MOST_ANSWER_TOKENS, after, max_tokens is not None)
                )
                after = len(plan) - 1
        return plan


def bundled_texts() -> dict[str, Any]:
    """Name of each set of texts in ChunkBench -> its file."""
    folder = resources.files("chunkbench.experiments") / "texts"
    return {file.name.removesuffix(".jsonl"): file for file in folder.iterdir() if file.name.endswith(".jsonl")}


def read_texts(name: str) -> Texts:
    """Read a file of JSON lines, or a bundled set of this name.

    A line has `text` (or `prompt`), `messages` (objects with `role` and `content`) or `turns` (objects with `text` and
    `delay`, the seconds after the previous answer). `messages` may stand before `turns`. A line with `name` is not a
    request, but a shared beginning. Later lines that have this name as `begin` start with it.

    If a line is bad, nothing is returned. Raises TraceError, which lists the bad lines.
    """
    bundled = bundled_texts()
    path, shown = Path(name), f"{name}.jsonl"
    try:
        if name in bundled and not os.path.isfile(path):
            text = decode(bundled[name].read_bytes(), shown)
        else:
            text, shown = read_text(path), name
    except TextError as error:
        hint = "" if os.path.exists(path) else f"; bundled sets are {', '.join(sorted(bundled))}"
        raise TraceError(f"{error}{hint}") from None
    beginnings: dict[str, Prompt] = {}

    def line(value: Any) -> tuple[tuple[Prompt, float], ...] | None:
        read = validated(_Line, value)
        (first, delay), *later = read.prompts()
        if read.begin is not None:
            if read.begin not in beginnings:
                raise ValueError(f"begin: no line before it has the name {read.begin!r}")
            first = _behind(beginnings[read.begin], first)
        if read.name is None:
            return ((first, delay), *later)
        if later or read.name in beginnings:
            raise ValueError(f"name: {read.name!r} is taken" if not later else "name: a beginning has no turns")
        beginnings[read.name] = first
        return None

    requests, _ = parsed(Path(shown), json_lines(text), line)
    return Texts(beginnings, tuple(requests))


def _behind(beginning: Prompt, rest: Prompt) -> Prompt:
    if isinstance(beginning, Chat) and isinstance(rest, Chat):
        return Chat((*beginning.messages, *rest.messages))
    if isinstance(beginning, str) and isinstance(rest, str):
        return beginning + rest
    raise ValueError("begin: text begins with text, and messages with messages")


def control(plan: Sequence[PlannedRequest], vocabulary: int) -> list[PlannedRequest]:
    """Copy the requests, and give each copy a different random beginning, so that no cache can help.

    Texts and chats then begin with a word of random letters. In prompts of token ids, the first ids are replaced. The
    new first id is drawn below `vocabulary`.
    """
    chance = SystemRandom()
    first = cycle(chance.sample(range(vocabulary), vocabulary))
    return [replace(request, prompt=_control(request.prompt, chance, first)) for request in plan]


def _control(prompt: Prompt, chance: SystemRandom, first: Iterator[int]) -> Prompt:
    if isinstance(prompt, tuple):
        others = chance.choices(prompt, k=_CONTROL_TOKENS - 1)
        return (next(first), *others, *prompt[_CONTROL_TOKENS:])[: len(prompt)]
    word = "".join(chance.choices(ascii_lowercase, k=10)) + " "
    return replace(prompt, word=word) if isinstance(prompt, Chat) else word + prompt


Ids = tuple[int, ...]
_OWN_WORDS = 4
"""Number of random tokens at the beginning of a drawn text. Without them, a cache could hold the text from an earlier
measurement."""


@dataclass(frozen=True)
class TextIds:
    """Token ids of real texts, from which prompts of any length are made."""

    openings: tuple[Ids, ...]
    """Texts with which requests begin, such as system prompts and examples."""
    questions: tuple[Ids, ...]
    words: Ids
    """Every token id that occurs in the texts, once."""

    def draw(self, purpose: str, count: int, shared: bool) -> list[int]:
        """Draw `count` token ids: a few random ids, then the ids of `openings` if `shared`, else of `questions`. The
        texts begin with a random one and keep their order. The last text is cut."""
        chance = random.Random(f"text {purpose}")
        texts = self.openings if shared and self.openings else self.questions
        ids, place = chance.choices(self.words, k=_OWN_WORDS), chance.randrange(len(texts))
        while len(ids) < count:
            ids.extend(texts[place % len(texts)])
            place += 1
        return ids[:count]


def text_ids(texts: Texts, tokenizer: Path) -> TextIds:
    """Convert texts to token ids with a `tokenizer.json`, without special tokens. Of a conversation, only the first
    turn is used."""
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
    """The opening of a request and the question after it, as plain text."""
    if isinstance(prompt, Chat):
        *before, last = (said["content"] for said in prompt.messages)
        return "\n".join(before), last
    assert isinstance(prompt, str)
    begun = (text for text in texts.beginnings.values() if isinstance(text, str) and prompt.startswith(text))
    opening = max(begun, default="", key=len)
    return opening, prompt.removeprefix(opening)
