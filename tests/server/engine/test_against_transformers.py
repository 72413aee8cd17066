"""Greedy tokens of the engine against transformers' own `generate`, in float32."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from chunkbench.kernels import cpu
from chunkbench.kernels.cpu import decode
from chunkbench.server.engine import Engine, EngineOptions, Model, Request
from chunkbench.server.engine.model import load_module
from chunkbench.server.transformers_backend import TransformersBackend
from tests.server.engine.models import VOCABULARY, answers_of, run_groups, write_checkpoint

TIE = 1e-4
"""Batches of other shapes sum in another order. Where the reference's two largest logits differ by less than this share
of all logits' spread, the tokens may differ, and the comparison of that request ends."""


@dataclass
class Compared:
    tokens: int = 0
    different: int = 0
    ties: int = 0


class Pair:
    """A checkpoint, loaded by the engine and by transformers."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self._known: dict[tuple[tuple[int, ...], int], Any] = {}
        self.model = Model(load_module(write_checkpoint(kind, folder), torch.float32))
        self.reference: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )

    def compare(self, requests: dict[str, Request], answers: dict[str, list[int]]) -> Compared:
        compared = Compared()
        for name, request in requests.items():
            generated = self._generated(tuple(request.prompt), request.max_tokens)
            expected = generated.sequences[0, len(request.prompt) :].tolist()
            assert len(answers[name]) == len(expected) == request.max_tokens
            for token, reference, logits in zip(answers[name], expected, generated.logits, strict=True):
                if token != reference:
                    top = logits[0].topk(2).values
                    near = (top[0] - top[1]) < TIE * (logits.max() - logits.min())
                    compared.ties += bool(near)
                    compared.different += not near
                    break
                compared.tokens += 1
        return compared

    def _generated(self, prompt: tuple[int, ...], count: int) -> Any:
        """The reference's answer; the options of the engine do not change it."""
        if (prompt, count) not in self._known:
            self._known[prompt, count] = self.reference.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=count,
                do_sample=False,
                return_dict_in_generate=True,
                output_logits=True,
            )
        return self._known[prompt, count]


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair("llama-grouped", tmp_path_factory.mktemp("grouped"))


@pytest.fixture(scope="module", params=["llama", "llama-grouped", "qwen2", "qwen3", "mistral"])
def pair(request: pytest.FixtureRequest, grouped: Pair, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    if request.param == grouped.kind:
        return grouped
    return Pair(request.param, tmp_path_factory.mktemp(request.param))


def test_our_own_forward_computes_what_it_can(pair: Pair) -> None:
    own = "transformers" if pair.kind == "qwen3" or cpu.native() is None else "native"
    assert pair.model.facts()["forward"] == own


def some_requests(count: int, seed: int = 0) -> dict[str, Request]:
    """Prompts that share nothing, a part, all, or a path of a tree."""
    chance = random.Random(seed)

    def text(tokens: int) -> list[int]:
        return [chance.randrange(VOCABULARY) for _ in range(tokens)]

    system, other = text(100), text(64)
    branches = [system[:64] + text(70) for _ in range(2)]
    requests = {}
    for n in range(count):
        start = chance.choice([[], system, system[:40], other, branches[0], branches[1], branches[0][:128]])
        prompt = start + text(chance.choice([1, 5, 30, 90]) if start and n % 5 else chance.randrange(1, 150))
        if n % 9 == 8:
            prompt = list(branches[0][:128])  # whole chunks, and all of them cached
        requests[f"r{n}"] = Request(f"r{n}", prompt, chance.randrange(1, 14))
    return requests


def answer(model: Model, requests: dict[str, Request], options: EngineOptions) -> dict[str, list[int]]:
    """Answers of an engine that gets two requests at each of its steps."""
    groups = [[request] for request in requests.values()]
    return run_groups(Engine(model, options), groups, arrivals=[n // 2 for n in range(len(groups))])[0]


@pytest.mark.parametrize(
    ("attention", "cache", "schedule"),
    [
        ("two-phase", "live", "fcfs"),
        ("two-phase", "radix", "prefix"),
        ("sequence-first", "live", "fcfs"),
        ("no-sharing", "live", "fcfs"),
    ],
)
def test_64_requests_that_join_and_leave(pair: Pair, attention: Any, cache: Any, schedule: Any) -> None:
    requests = some_requests(64 if pair.kind == "llama-grouped" and attention == "two-phase" else 12)
    options = EngineOptions(
        kv_bytes=8 << 20, prompt_budget=80, max_batch=12, attention=attention, cache=cache, schedule=schedule
    )
    compared = pair.compare(requests, answer(pair.model, requests, options))
    assert compared.different == 0
    assert compared.ties <= 0.01 * sum(request.max_tokens for request in requests.values())
    assert compared.tokens > 4 * len(requests)


class ShiftedModel(Model):
    """Positions behind the first token of a piece of a sequence are one too large."""

    def logits(self, tokens: Any, positions: list[int], rows: Any, attention: Any) -> torch.Tensor:
        moved, shift, last = [], 0, -2
        for position in positions:
            if position != last + 1:  # another sequence
                shift = int(position > 0)
            moved.append(position + shift)
            last = position
        return super().logits(tokens, moved, rows, attention)


def test_control_positions_off_by_one_change_tokens(grouped: Pair) -> None:
    requests = some_requests(16)
    options = EngineOptions(kv_bytes=8 << 20, prompt_budget=80)
    shifted = ShiftedModel(load_module(grouped.folder, torch.float32))
    assert grouped.compare(requests, answer(shifted, requests, options)).different > 8


@pytest.mark.skipif(cpu.native() is None, reason="needs the native module")
def test_control_an_ignored_prefix_changes_tokens(grouped: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    items_of_prompts = decode.items_of_prompts

    def without_first_chunk(*arguments: Any) -> Any:
        items, tokens = items_of_prompts(*arguments)
        skipped = (items.chunk_count > 1).astype(np.int64)
        return items._replace(first_chunk=items.first_chunk + skipped, chunk_count=items.chunk_count - skipped), tokens

    monkeypatch.setattr(decode, "items_of_prompts", without_first_chunk)
    requests = some_requests(16)
    options = EngineOptions(kv_bytes=8 << 20, prompt_budget=80)
    assert grouped.compare(requests, answer(grouped.model, requests, options)).different > 5


@pytest.mark.parametrize("where", ["generation_config.json", "config.json"])
def test_an_answer_ends_where_generate_ends_it(grouped: Pair, tmp_path: Path, where: str) -> None:
    """Llama 3's end-of-sequence ids are a list that stands in generation_config.json alone."""
    prompt = list(range(20))
    going_on = grouped.reference.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[0, 20:].tolist()
    module = grouped.reference
    module.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    settings = json.loads((tmp_path / where).read_text()) if where == "config.json" else {}
    settings["eos_token_id"] = [VOCABULARY - 1, going_on[5]]
    (tmp_path / where).write_text(json.dumps(settings))
    reference: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    expected = reference.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[0, 20:].tolist()
    engine = Engine(Model(load_module(tmp_path, torch.float32)), EngineOptions(kv_bytes=1 << 20))
    assert answers_of(engine, Request("r", prompt, 12))["r"] == expected == going_on[: going_on.index(going_on[5]) + 1]
    backend = TransformersBackend(load_module(tmp_path, torch.float32, "sdpa"), EngineOptions(kv_bytes=1 << 20))
    assert backend._ends(Request("r", prompt, 12)) == {VOCABULARY - 1, going_on[5]}
    assert backend._ends(Request("r", prompt, 12, ignore_eos=True)) == set()
