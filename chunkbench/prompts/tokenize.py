"""Token ids of prompts, by a tokenizer that is named or lies in a file; offline where it is present."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from chunkbench.prompts.read import Prompt, PromptsError

Encode = Callable[[list[str]], list[list[int]]]


def tokenized(prompts: Sequence[Prompt], tokenizer: str | None) -> list[tuple[int, ...]]:
    """[prompt] token ids: those that were given, or what `tokenizer` makes of the text.

    `tokenizer` is a `tokenizer.json` of Hugging Face, an encoding of tiktoken (`cl100k_base`), or a model's name on
    Hugging Face. Raises `PromptsError`.
    """
    texts = [prompt for prompt in prompts if prompt.tokens is None]
    if texts and tokenizer is None:
        raise PromptsError(
            f"{texts[0].place}: is text, and no tokenizer was chosen: name a tokenizer.json, an encoding of tiktoken "
            "(cl100k_base) or a model's name on Hugging Face; token ids need none"
        )
    if texts and len(texts) < len(prompts):
        given = next(prompt for prompt in prompts if prompt.tokens is not None)
        raise PromptsError(f"{given.place}: token ids beside texts, maybe of another tokenizer; choose one kind")
    encoded = iter(_encoder(tokenizer)([prompt.text for prompt in texts]) if tokenizer and texts else ())
    found = [prompt.tokens if prompt.tokens is not None else tuple(next(encoded)) for prompt in prompts]
    for prompt, tokens in zip(prompts, found, strict=True):
        if not tokens:
            raise PromptsError(f"{prompt.place}: the tokenizer makes no token of it; leave it out")
    return found


def _encoder(name: str) -> Encode:
    if name.endswith(".json"):
        return _from_file(Path(name))
    try:
        import tiktoken
    except ImportError:
        if name.endswith("_base"):  # as most of its encodings do, and no model on Hugging Face
            raise PromptsError(f"tokenizer {name}: needs tiktoken: pip install 'chunkbench[prompts]'") from None
        known: list[str] = []
    else:
        known = tiktoken.list_encoding_names()
    if name in known:
        try:
            encoding = tiktoken.get_encoding(name)
        except Exception as error:  # whatever its download raises: there is no network, or a proxy
            raise PromptsError(
                f"tokenizer {name}: tiktoken has it neither in its cache (TIKTOKEN_CACHE_DIR) nor could load it: "
                f"{_first_line(error)}"
            ) from None
        # Special tokens in a text are text here, as they are to a server that is given user input.
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
            f"tokenizer {name}: neither a file, nor an encoding of tiktoken, nor in the cache of Hugging Face, and "
            f"could not be loaded from there: {_first_line(error)}"
        ) from None
    return partial(_encode, loaded)


def _encode(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def _tokenizers(name: str) -> Any:
    """The module, which may not be installed."""
    try:
        import tokenizers
    except ImportError:
        raise PromptsError(f"tokenizer {name}: needs tokenizers: pip install 'chunkbench[prompts]'") from None
    return tokenizers


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
