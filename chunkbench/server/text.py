"""Converts text to token ids and back, with the tokenizer of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from chunkbench.server.engine.model import reading_with_transformers
from chunkbench.server.protocol import ApiError

NO_TOKENIZER = "this model has no tokenizer: send the prompt as a list of token ids"
_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_INCOMPLETE = "\ufffd"
"""Decoders write this character in place of an incomplete one."""


class CheckpointTokenizer:
    """The tokenizer of a checkpoint. If there is none, clients must send token ids, and answers hold only token ids."""

    def __init__(self, folder: Path | None) -> None:
        """`folder`: the checkpoint. None, for a model with random weights: there is no tokenizer. Raises ModelError."""
        self._tokenizer: Any = None
        if folder is not None and any((folder / name).is_file() for name in _FILES):
            from transformers import AutoTokenizer

            with reading_with_transformers(folder):
                tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
                tokenizer("")  # the first call sets state that several threads must not set at the same time
            self._tokenizer = tokenizer
            vocabulary = tokenizer.get_vocab()
            self._ids = frozenset(vocabulary.values())
            self._texts: dict[int, str] = {}
            self._anchor: int = [*tokenizer("a", add_special_tokens=False)["input_ids"], *self._ids][0]
            self._bytes = frozenset(vocabulary[name] for n in range(256) if (name := f"<0x{n:02X}>") in vocabulary)
            fast = getattr(tokenizer, "backend_tokenizer", None)
            cleaned = getattr(tokenizer, "clean_up_tokenization_spaces", False)
            self._cleaned = cleaned and type(getattr(fast, "model", None)).__name__ != "BPE"

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Convert a prompt to token ids. `special`: whether to add the special tokens that the model expects. Raises
        ApiError."""
        if self._tokenizer is None:
            raise ApiError(NO_TOKENIZER, param="prompt")
        return self._encode("prompt", text, add_special_tokens=special)

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Convert the messages of a chat to token ids, with the model's chat template. Raises ApiError."""
        if self._tokenizer is None or not self._tokenizer.chat_template:
            raise ApiError("this model has no chat template; use /v1/completions", param="messages")
        try:
            text = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except Exception as error:  # a template is a program of its own and may raise anything
            raise ApiError(f"the model's chat template refuses these messages: {error}", param="messages") from None
        return self._encode("messages", text, add_special_tokens=False)

    def token_text(self, token: int) -> str:
        """The text of one token inside a text, or the name of a special token. U+FFFD replaces bytes that are not a
        whole character."""
        if self._tokenizer is None or token not in self._ids:
            return ""
        if token not in self._texts:
            # Decoders strip the beginning of a text, so another token stands before this one.
            before, both = (self._tokenizer.decode(ids) for ids in ([self._anchor], [self._anchor, token]))
            self._texts[token] = both[len(before) :]
        return self._texts[token]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of an answer's token ids, without special tokens."""
        if self._tokenizer is None:
            return ""
        text: str = self._tokenizer.decode([token for token in ids if token in self._ids], skip_special_tokens=True)
        return text

    def tokenizer_json(self) -> str:
        """The tokenizer in the format of a tokenizer.json. Raises ApiError."""
        fast = getattr(self._tokenizer, "backend_tokenizer", None)
        if fast is None:
            message = "this model has no tokenizer" if self._tokenizer is None else "this model's tokenizer is slow"
            raise ApiError(f"{message}: constraints need one of the library tokenizers", param="response_format")
        return str(fast.to_str())

    def check(self, stops: Sequence[str]) -> None:
        """Raise ApiError if there are stop strings but no tokenizer to find them."""
        if stops and self._tokenizer is None:
            raise ApiError("this model has no tokenizer: name the tokens that stop in stop_token_ids", param="stop")

    def stream(self) -> TextStream:
        """Make an object that decodes one answer, token by token."""
        if self._tokenizer is None:
            return TextStream(self.decode)
        return TextStream(self.decode, self._bytes, self._cleaned)

    def _encode(self, field: str, text: str, **options: bool) -> list[int]:
        try:
            ids: list[int] = self._tokenizer(text, **options)["input_ids"]
        except Exception as error:  # for example for an unknown word in a vocabulary without a token for it
            raise ApiError(f"the model's tokenizer cannot read this text: {error}", param=field) from None
        return ids


class StopSearch:
    """Ends a text at its first stop string. The text arrives in pieces.

    Text that may be the beginning of a stop string is held back until later text decides. A complete stop string
    ends the text at once, even if a longer one that began earlier could still follow.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""

    def add(self, piece: str, last: bool, search: bool = True) -> tuple[str, bool]:
        """Add a piece. Returns the text that can be sent now, and whether a stop string ended the text. With
        `search=False`, stop strings are ignored."""
        text = self._held + piece
        found = [place for stop in self._stops if search and (place := text.find(stop)) >= 0]
        end = min(found) if found else len(text) if last else self._safe(text)
        self._held = text[end:]
        return text[:end], bool(found)

    def _safe(self, text: str) -> int:
        """Number of characters that can be sent: the text after them could be the beginning of a stop string."""
        longest = max(map(len, self._stops), default=1) - 1
        places = range(max(0, len(text) - longest), len(text))
        return next((place for place in places if self._begun(text[place:])), len(text))

    def _begun(self, end: str) -> bool:
        return any(len(stop) > len(end) and stop.startswith(end) for stop in self._stops)


class TextStream:
    """Decodes an answer token by token. Joined, the returned pieces equal `decode` of all tokens.

    A piece is returned only when no later token can change it. A character may need several tokens. Consecutive
    tokens of single bytes are decoded together; if they are not valid UTF-8, all of them become U+FFFD.
    """

    def __init__(
        self, decode: Callable[[list[int]], str], byte_ids: frozenset[int] = frozenset(), cleaned: bool = False
    ) -> None:
        """`byte_ids`: ids of tokens that are single bytes. `cleaned`: whether a later token may change spaces that
        were already decoded."""
        self._decode = decode
        self._bytes = byte_ids
        self._cleaned = cleaned
        self._in_bytes = False
        self._ids: list[int] = []
        """The tokens of the last returned piece, then tokens whose text was not returned yet. The last piece is
        decoded again, because decoders strip the beginning of a text."""
        self._before = 0
        """Number of tokens in `_ids` that belong to the last returned piece."""
        self._given = ""
        """The text of the last returned piece."""
        self._rewritten = False
        """True after tokens were replaced: a part of the new tokens' text was already returned for the old tokens."""
        self._all: list[int] = []
        self._all_given = ""

    def begin(self, ids: Sequence[int]) -> str:
        """Start with these tokens of the prompt, which the answer continues. Returns their text."""
        self._ids, self._all, self._before = list(ids), list(ids), len(ids)
        self._given = self._all_given = self._decode(self._ids)
        return self._given

    def add(self, token: int, last: bool, replaces: int = 0) -> str:
        """Add a token. Returns the text that later tokens cannot change. The last token returns all remaining text.

        Before the token is added, the last `replaces` tokens are removed. Text that was returned for the removed tokens
        is not returned again.
        """
        piece = self._piece(token, last, replaces)
        self._all_given += piece
        return piece

    def _piece(self, token: int, last: bool, replaces: int) -> str:
        if replaces:
            del self._all[-replaces:]
            self._ids, self._before, self._given = self._all.copy(), len(self._all), self._all_given
            self._rewritten = True
        self._all.append(token)
        self._ids.append(token)
        if not last and self._waits(token):
            return ""
        text = self._decode(self._ids)
        if not last and text.endswith(_INCOMPLETE):
            return ""
        piece = text[len(self._given) :]
        if piece:
            self._rewritten = False
            self._ids = self._ids[self._before :]
            self._before = len(self._ids)
            self._given = self._decode(self._ids)
        return piece

    def _waits(self, token: int) -> bool:
        if token in self._bytes:
            self._in_bytes = True
        elif self._in_bytes and self._decode([token]):  # a special token has no text and does not end a run of bytes
            self._in_bytes = False
        waiting = len(self._ids) - self._before
        # Decoding a long run again at every token would take quadratic time.
        long_run = waiting > 8 and waiting & (waiting - 1) != 0 and not self._rewritten
        return self._cleaned or self._in_bytes or long_run
