"""The tokens of a model, in a form that keeps every letter of a text. Also a tokenizer whose tokens are single
bytes."""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chunkbench.server.constrained.constraint import ConstraintRefused

_SPACES = (
    {"type": "Prepend", "prepend": "\u2581"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
)
"""Normalizers that only change how spaces are written, as SentencePiece does. They lose no letter."""

_END = {
    "content": "<|the end of an answer|>",
    "special": True,
    **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
}


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a model as llguidance needs them."""

    library: Any
    """An LLTokenizer, the type of llguidance's tokenizers."""
    lengths: NDArray[np.int32]
    """`[tokens]`: number of bytes of each token's text; 0 for special tokens."""
    writable: NDArray[np.int32]
    """`[words]`: a bit mask of the tokens that the model can choose. A word has the bits of 32 tokens."""
    endless: bool
    """True if the model has no token that ends an answer."""

    @classmethod
    def read(cls, tokenizer: str, size: int, ends: Collection[int]) -> Vocabulary:
        """Read a tokenizer. `tokenizer`: text of the tokenizer.json; `size`: size of the model's vocabulary; `ends`:
        token ids that end an answer.

        Takes about a second. Raises ModuleNotFoundError without llguidance, ConstraintRefused if llguidance cannot
        read the tokenizer.
        """
        import llguidance

        end_ids = sorted(token for token in ends if token < size)
        written = _writing(json.loads(tokenizer), size)
        last = max(_ids(written), default=0)
        if not end_ids:  # llguidance needs an end; the model never chooses this one
            last += 1
            written["added_tokens"].append({**_END, "id": last})
        with refusing("llguidance cannot read the model's tokenizer"):
            library = llguidance.LLTokenizer(
                json.dumps(written), n_vocab=max(size, last + 1), eos_token=end_ids or last
            )
        lengths = np.zeros(size, np.int32)
        for token in range(size):
            if token not in end_ids and not library.is_special_token(token):
                lengths[token] = len(library.decode_bytes([token]))
        writable = np.zeros(-(-size // 32) * 32, np.uint8)
        writable[:size] = 1
        if not end_ids:
            writable[last:] = 0
        return cls(library, lengths, np.packbits(writable, bitorder="little").view(np.int32), not end_ids)

    def text(self, tokens: Sequence[int]) -> bytes:
        """The text of these tokens as UTF-8. Special tokens are left out."""
        text: bytes = self.library.decode_bytes([token for token in tokens if self.lengths[token]])
        return text

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of these tokens. Special tokens are left out; U+FFFD replaces bytes that are not characters."""
        return self.text(tokens).decode(errors="replace")

    def of_text(self, text: bytes) -> list[int]:
        """The canonical token ids of a text."""
        tokens: list[int] = self.library.tokenize_bytes(text)
        return tokens


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """A context that turns llguidance's errors and panics into ConstraintRefused. The message begins with `what`."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, ValueError | RuntimeError) and type(error).__name__ != "PanicException":
            raise
        raise ConstraintRefused(f"{what}: {' '.join(str(error).split())}") from None


def _writing(tokenizer: dict[str, Any], size: int) -> dict[str, Any]:
    """A tokenizer.json that keeps each letter of a text, and has only tokens of the model.

    A tokenizer that normalises texts (NFC, lower case) has no tokens for some texts that the model can write.
    """
    lost = dict.fromkeys(("truncation", "padding", "post_processor"))
    added = [token for token in tokenizer.get("added_tokens") or () if token["id"] < size]
    model, normalizer = _within(tokenizer["model"], size), _lossless(tokenizer.get("normalizer"))
    return {**tokenizer, **lost, "added_tokens": added, "model": model, "normalizer": normalizer}


def _ids(tokenizer: dict[str, Any]) -> list[int]:
    """Ids of all tokens of a tokenizer.json."""
    vocabulary = tokenizer["model"]["vocab"]
    own = range(len(vocabulary)) if isinstance(vocabulary, list) else vocabulary.values()
    return [*own, *(token["id"] for token in tokenizer["added_tokens"])]


def _within(model: dict[str, Any], size: int) -> dict[str, Any]:
    """The tokenizer's model without the token ids from `size` on."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):  # Unigram: by id
        return {**model, "vocab": vocabulary[:size]}
    kept = {text: token for text, token in vocabulary.items() if token < size}
    if len(kept) == len(vocabulary) or "merges" not in model:
        return {**model, "vocab": kept}
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    return {**model, "vocab": kept, "merges": [pair for pair in pairs if {*pair, "".join(pair)} <= kept.keys()]}


def _lossless(normalizer: dict[str, Any] | None) -> dict[str, Any] | None:
    """The parts of a normalizer that only change how spaces are written."""
    if normalizer is not None and normalizer["type"] == "Sequence":
        return {**normalizer, "normalizers": [part for part in map(_lossless, normalizer["normalizers"]) if part]}
    return normalizer if normalizer in _SPACES else None


class _Bytes:
    """A tokenizer whose tokens are single bytes, in the form that llguidance takes."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids = (256,)

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@functools.cache
def _byte_tokens() -> Any:
    import llguidance

    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()), n_vocab=257)


def follow_bytes(regex: str, limits: Any = None) -> Any:
    """Make an LLMatcher over bytes for a regular expression. Raises ConstraintRefused, ModuleNotFoundError without
    llguidance."""
    import llguidance

    library = llguidance.LLMatcher
    state = library(_byte_tokens(), library.grammar_from_regex(regex), log_level=0, limits=limits)
    if state.is_error():
        raise ConstraintRefused(" ".join(state.get_error().split()))
    return state


def whole_characters(text: bytes) -> bytes:
    """The bytes without an incomplete character at the end. Empty if the bytes begin inside a character."""
    if text and 0x80 <= text[0] < 0xC0:
        return b""
    return text.decode(errors="ignore").encode()  # the last character may be incomplete
