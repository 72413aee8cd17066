"""Text to token ids and back, where the checkpoint brings a tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from chunkbench.serving.server.protocol import ApiError

NO_TOKENIZER = "this model has no tokenizer: send the prompt as a list of token ids"
_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


class Text:
    """The tokenizer of a checkpoint. Without one, text is refused and answers carry token ids only."""

    def __init__(self, folder: Path | None) -> None:
        """`folder`: the checkpoint; None: random weights."""
        self._tokenizer: Any = None
        if folder is not None and any((folder / name).is_file() for name in _FILES):
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, with the special tokens that the model expects. Raises ApiError."""
        if self._tokenizer is None:
            raise ApiError(NO_TOKENIZER, param="prompt")
        ids: list[int] = self._tokenizer(text)["input_ids"]
        return ids

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of a conversation that the model is to go on with. Raises ApiError."""
        if self._tokenizer is None or not self._tokenizer.chat_template:
            raise ApiError("this model has no chat template; use /v1/completions", param="messages")
        from jinja2 import TemplateError

        try:
            text = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except TemplateError as error:
            raise ApiError(f"the model's chat template refuses these messages: {error}", param="messages") from None
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def decoder(self) -> Callable[[int], str]:
        """A function for one answer: takes its tokens one after the other and gives the text that each adds.

        A character can need several tokens; the text then comes with the last of them.
        """
        if self._tokenizer is None:
            return lambda token: ""
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=True)
        tokenizer = self._tokenizer.backend_tokenizer
        return lambda token: stream.step(tokenizer, token) or ""
