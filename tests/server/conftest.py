"""A small model behind a real server process, and the real `openai` client: one server for each file of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.server.engine.models import VOCABULARY, sharp_module
from tests.server.processes import Served, serve

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
ORIGIN = "http://pages.example"
POISON = VOCABULARY - 1
"""A token of which the served model makes NaN. Other prompts lead to it with no probability that counts."""
TEMPLATE = "{% for m in messages %}{% if m.role == 'odd' %}{{ raise_exception('no odd roles') }}{% endif %}"
TEMPLATE += "{% if m.role == 'sum' %}{{ m.content + 1 }}{% endif %}w{{ loop.index }} {{ m.content }} {% endfor %}"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with sharp random weights, a tokenizer of whole words w0, w1, ..., and a chat template."""
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("checkpoint")
    module = sharp_module("llama-grouped", "eager")
    module.model.embed_tokens.weight.data[POISON] = float("nan")
    module.lm_head.weight.data[POISON] = 0
    module.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def served(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("log")
    options = ["--served-name", "sharp", "--dtype", "float32", "--kv-memory", "4MiB", "--allow-origin", ORIGIN]
    with serve(log, str(checkpoint), *options) as server:
        yield server


def client_of(server: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def client(served: Served) -> openai.OpenAI:
    return client_of(served)


def ask(client: openai.OpenAI, stream: bool = False, **fields: Any) -> Any:
    """The answer to `PROMPT`, or to another one, with these fields; six tokens, greedy, by default."""
    body = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0, "return_token_ids": True, **fields}
    return client.completions.create(model="sharp", prompt="", stream=stream, extra_body=body)


def chat(client: openai.OpenAI, said: str = "w8", stream: bool = False, **fields: Any) -> Any:
    """The answer to a message, with these fields; greedy by default. `messages` takes the place of the message."""
    body = {"messages": [{"role": "user", "content": said}], "temperature": 0, **fields}
    return client.chat.completions.create(model="sharp", messages=[], stream=stream, extra_body=body)


def text_of(events: Any) -> str:
    """The text of a stream, by either route."""
    choices = [choice for event in events for choice in event.choices]
    return "".join(one.text if hasattr(one, "text") else one.delta.content or "" for one in choices)
