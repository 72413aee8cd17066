"""Reads real prompts (texts, chats or token ids) from files, and converts them to token ids. Needs no network."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from chunkbench.text_file import TextError, from_json, is_stream, lines, read_text
from chunkbench.traffic.request import MOST_TOKEN_IDS

_TOKENS, _TEXTS = ("token_ids", "input_ids", "prompt_token_ids", "tokens"), ("prompt", "text", "text_input")
_CHATS = ("messages", "conversations")
_SHAREGPT_ROLES = {"human": "user", "gpt": "assistant"}


class PromptsError(ValueError):
    """A file or a tokenizer cannot be used. The message says where, why, and how to fix it."""


@dataclass(frozen=True)
class Prompt:
    group: str
    text: str = ""
    tokens: tuple[int, ...] | None = None
    place: str = ""
    """Where the prompt comes from: a file, `file:line` or `file[index]`."""


def read(paths: Sequence[Path], group_by: str | None = None) -> list[Prompt]:
    """Read all prompts of the files, in order. Raises `PromptsError`.

    A `.jsonl` file has one prompt per line, a `.json` file is a list of prompts, any other file is one prompt. For a
    pipe, the first line decides.

    A prompt is a text, a list of token ids, a list of chat messages (`role`, `content`), or an object with one of these
    fields: `prompt`, `text` or `text_input`; `token_ids`, `input_ids`, `prompt_token_ids` or `tokens`; `messages`;
    ShareGPT's `conversations` (messages of `from`, `value`). An empty `conversations` is left out.

    The field `group_by` (default: `group`) holds the prompt's group. Without this field, the group is the file's
    name for JSON and the folder's name for text.
    """
    prompts: list[Prompt] = []
    for path in paths:
        try:
            content = read_text(path)
        except TextError as error:
            raise PromptsError(str(error)) from None
        suffix = _suffix_of(content) if is_stream(path) else path.suffix.lower()
        if suffix not in (".json", ".jsonl"):
            prompts.append(Prompt(path.resolve().parent.name or "prompts", content, place=str(path)))
            continue
        for place, value in _values(path, content, suffix):
            if not (isinstance(value, dict) and value.get("conversations") == []):  # ShareGPT's own file has some
                prompts.append(_prompt(value, place, path.stem, group_by))
    for prompt in prompts:
        if not prompt.text and not prompt.tokens:
            raise PromptsError(f"{prompt.place}: the prompt is empty; remove it")
    return prompts


def _suffix_of(content: str) -> str:
    """The suffix that fits the content of a pipe. It depends on whether the content begins like JSON, and whether the
    first line is a whole prompt."""
    (_, first), *more = [*islice(lines(content), 2)] or [(0, "")]
    if not first.lstrip().startswith(("{", "[", '"')):
        return ""
    try:
        value = from_json(first)
    except ValueError:
        return ".json"
    listed = isinstance(value, list) and not (more or _are_tokens(value) or all(map(_is_message, value)))
    return ".json" if listed else ".jsonl"


def _values(path: Path, content: str, suffix: str) -> Iterator[tuple[str, Any]]:
    if suffix == ".json":
        try:
            values = from_json(content)
        except ValueError as error:
            raise PromptsError(f"{path}: {error}") from None
        if not isinstance(values, list):
            raise PromptsError(f"{path}: not a list; a .json file is a list of prompts, a .jsonl file has one per line")
        yield from ((f"{path}[{index}]", value) for index, value in enumerate(values))
        return
    for number, line in lines(content):
        try:
            yield f"{path}:{number}", from_json(line)
        except ValueError as error:
            raise PromptsError(f"{path}:{number}: {error}") from None


def _prompt(value: Any, place: str, group: str, group_by: str | None) -> Prompt:
    if isinstance(value, dict):
        field = group_by or "group"
        if field in value:
            group = str(value[field])
        elif group_by is not None:
            raise PromptsError(f"{place}: has no field {group_by!r} to group prompts by")
        present = [name for name in (*_TOKENS, *_TEXTS, *_CHATS) if name in value]
        if not present:
            fields = ", ".join(map(repr, value)) or "none"
            raise PromptsError(f"{place}: has no prompt, text, token_ids or messages (its fields: {fields})")
        value = value[present[0]]
    if isinstance(value, str):
        return Prompt(group, value, place=place)
    if _are_tokens(value):
        return Prompt(group, tokens=tuple(value), place=place)
    if isinstance(value, list) and all(isinstance(message, dict) for message in value):
        return Prompt(group, "".join(_message(message, place) for message in value), place=place)
    raise PromptsError(f"{place}: neither a text, nor token ids (whole numbers from 0 to 2^31 - 1), nor chat messages")


def _are_tokens(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(item) is int and 0 <= item < MOST_TOKEN_IDS for item in value)
    )


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and ("role" in value or "from" in value)


def _message(message: dict[str, Any], place: str) -> str:
    """One message as text, with the role first. Models use different templates, but only the order matters for shared
    prefixes."""
    role, content = message.get("role"), message.get("content")
    if "from" in message:
        role, content = _SHAREGPT_ROLES.get(str(message["from"]), message["from"]), message.get("value")
    if isinstance(content, list):  # a list of parts; a text model sees only the text parts
        texts = [part.get("text", "") for part in content if isinstance(part, dict)]
        content = "".join(texts) if all(isinstance(text, str) for text in texts) else None
    if not isinstance(role, str) or not isinstance(content, str):
        raise PromptsError(f"{place}: a chat message needs a role and a content")
    return f"<|{role}|>\n{content}\n"


Encode = Callable[[list[str]], list[list[int]]]


def tokenized(prompts: Sequence[Prompt], tokenizer: str | None) -> list[tuple[int, ...]]:
    """The token ids of each prompt, from the file or from its text.

    `tokenizer`: path of a Hugging Face `tokenizer.json`, name of a tiktoken encoding (`cl100k_base`), or name of a
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
    """Name of each group -> token ids of its prompts, in order. Raises `PromptsError`."""
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
        if name.endswith("_base"):  # most tiktoken encodings end with this, and no model on Hugging Face does
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
    if not os.path.isfile(path):
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
