"""Token ids of prompts, from a tokenizer file or a named tokenizer. Works offline if the tokenizer is present."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from chunkbench.traffic.sets.read import Prompt, PromptsError

Encode = Callable[[list[str]], list[list[int]]]


def tokenized(prompts: Sequence[Prompt], tokenizer: str | None) -> list[tuple[int, ...]]:
    """Token ids of each prompt: its own, or those that `tokenizer` makes from its text.

    `tokenizer` is the path of a Hugging Face `tokenizer.json`, a tiktoken encoding (`cl100k_base`), or the name of a
    model on Hugging Face. Raises `PromptsError`.
    """
    texts = [prompt for prompt in prompts if prompt.tokens is None]
    if texts and not tokenizer:
        raise PromptsError(
            f"{texts[0].place}: is text, and no tokenizer was chosen: name a tokenizer.json, an encoding of tiktoken "
            "(cl100k_base) or a model on Hugging Face; token ids need no tokenizer"
        )
    if texts and len(texts) < len(prompts):
        other = next(prompt for prompt in prompts if prompt.tokens is not None)
        raise PromptsError(f"{other.place}: token ids among texts, maybe of another tokenizer; use only one of the two")
    encoded = iter(_encoder(tokenizer)([prompt.text for prompt in texts]) if tokenizer and texts else ())
    token_ids = [prompt.tokens if prompt.tokens is not None else tuple(next(encoded)) for prompt in prompts]
    for prompt, tokens in zip(prompts, token_ids, strict=True):
        if not tokens:
            raise PromptsError(f"{prompt.place}: the tokenizer gives no token for this prompt; remove it")
    return token_ids


def grouped(prompts: Sequence[Prompt], tokenizer: str | None) -> dict[str, list[tuple[int, ...]]]:
    """Group -> the token ids of its prompts, in order. Raises `PromptsError` as `tokenized` does."""
    groups: dict[str, list[tuple[int, ...]]] = {}
    for prompt, tokens in zip(prompts, tokenized(prompts, tokenizer), strict=True):
        groups.setdefault(prompt.group, []).append(tokens)
    return groups


def _encoder(name: str) -> Encode:
    if name.endswith(".json"):
        return _from_file(Path(name))
    try:
        import tiktoken
    except ImportError:
        if name.endswith("_base"):  # most tiktoken encodings end so, and no model on Hugging Face
            raise PromptsError(f"tokenizer {name}: needs tiktoken: pip install 'chunkbench[prompts]'") from None
        encodings: list[str] = []
    else:
        encodings = tiktoken.list_encoding_names()
    if name in encodings:
        try:
            encoding = tiktoken.get_encoding(name)
        except Exception as error:  # the download can raise anything, for example behind a proxy
            raise PromptsError(
                f"tokenizer {name}: not in tiktoken's cache (TIKTOKEN_CACHE_DIR), and the download failed: "
                f"{_first_line(error)}"
            ) from None
        # Encode special tokens in a text as plain text, like a server does with user input.
        return lambda texts: encoding.encode_batch(texts, disallowed_special=())
    return _from_hub(name)


def _from_file(path: Path) -> Encode:
    tokenizers = _tokenizers(str(path))
    if not path.is_file():
        raise PromptsError(f"tokenizer {path}: no such file")
    try:
        loaded = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise PromptsError(f"tokenizer {path}: not a tokenizer.json of Hugging Face: {_first_line(error)}") from None
    return partial(_encode, loaded)


def _from_hub(name: str) -> Encode:
    tokenizers = _tokenizers(name)
    try:
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(name, "tokenizer.json")
        if isinstance(cached, str):
            return _from_file(Path(cached))
        loaded = tokenizers.Tokenizer.from_pretrained(name)
    except PromptsError:
        raise
    except Exception as error:  # no network, no such model, no permission
        raise PromptsError(
            f"tokenizer {name}: not a file, not an encoding of tiktoken, not in the cache of Hugging Face, and the "
            f"download from Hugging Face failed: {_first_line(error)}"
        ) from None
    return partial(_encode, loaded)


def _encode(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def _tokenizers(name: str) -> Any:
    """The module `tokenizers`. Raises `PromptsError` if it is not installed."""
    try:
        import tokenizers
    except ImportError:
        raise PromptsError(f"tokenizer {name}: needs tokenizers: pip install 'chunkbench[prompts]'") from None
    return tokenizers


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
