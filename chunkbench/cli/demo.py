"""`chunkbench demo`: answers sixteen users of a real model, who share one system prompt, with and without sharing
K/V."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from chunkbench.cli.output import fail, format_option, serving_libraries, show, status_line

if TYPE_CHECKING:
    from chunkbench.report.model import Output
    from chunkbench.server.engine import Engine, Request

USERS = 16
SYSTEM = "coding-assistant"
"""Name of the bundled system prompt."""
MOST_TOKENS = 48
"""Maximum number of tokens of an answer."""
ABOUT = "Answers are greedy, in float32; both sides compute the same tokens with the same kernels and weights."


@dataclass
class Answered:
    """The results of answering all requests, either with or without sharing. Times are in seconds."""

    name: str
    computed_tokens: int = 0
    kv_bytes: int = 0
    """Largest size of all K/V at any time, in bytes."""
    answers: dict[str, list[int]] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    """Request -> time of its first token, in seconds after all requests arrived."""
    gaps: list[float] = field(default_factory=list)
    """Time of each step that computed no prompt, in seconds."""
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        return sum(map(len, self.answers.values()))


@click.command(
    "demo",
    epilog="""\b
    Examples:
      chunkbench demo
      chunkbench demo --user 3
      chunkbench demo --format json
    """,
)
@click.option("--user", type=click.IntRange(1, USERS), default=1, show_default=True, help="User whose answer is shown.")
@format_option("documents", "data")
def command(user: int, form: str) -> None:
    """Answer sixteen questions under one long system prompt, first without sharing, then with it.

    The model is smollm2-135m; `make serving` installs it. Takes one or two minutes on two cores that do nothing else,
    several times as long beside other work.
    """
    with serving_libraries():
        import torch

        from chunkbench.server import smollm2
        from chunkbench.server.engine import Engine, EngineOptions, Model, Request
        from chunkbench.server.engine.model import load_module
        from chunkbench.server.text import CheckpointTokenizer
    from chunkbench.bench.environment import NoiseMeter
    from chunkbench.traffic.request import Chat
    from chunkbench.traffic.texts import read_texts

    try:
        folder = smollm2.checkpoint()
    except smollm2.ModelMissing as error:
        fail(error)
    click.echo(f"loading {smollm2.NAME}, then {USERS} answers without sharing, and again with it", err=True)
    model, text = Model(load_module(folder, torch.float32)), CheckpointTokenizer(folder)
    texts = read_texts("questions")
    (begun,) = [one.sent[0] for name, one in texts.beginnings.items() if name == SYSTEM and isinstance(one, Chat)]
    asked = [line[0][0] for line in texts.lines]
    chats = [prompt.sent for prompt in asked if isinstance(prompt, Chat) and prompt.sent[0] == begun]
    prompts = [text.encode_chat(chat) for chat in chats[:USERS]]
    room = sum(map(len, prompts)) + USERS * (MOST_TOKENS + 64)
    sides = []
    noise = NoiseMeter()
    noise.start()
    for name, attention in (("without sharing", "no-sharing"), ("with sharing", "two-phase")):
        options = EngineOptions(USERS, kv_bytes=room * model.token_bytes(), attention=attention, cache="live")  # type: ignore[arg-type]
        requests = [Request(str(number), prompt, MOST_TOKENS) for number, prompt in enumerate(prompts, 1)]
        sides.append(_answer(name, Engine(model, options), requests))
    status_line("")
    answer = text.decode(sides[1].answers[str(user)])
    show(_output(sides, prompts, chats[user - 1][-1]["content"], answer, noise.stop()), form)


def _answer(name: str, engine: Engine, requests: Sequence[Request]) -> Answered:
    """Answer all requests, which arrive at once."""
    side = Answered(name, answers={request.id: [] for request in requests})
    started = perf_counter()
    most = sum(request.max_tokens for request in requests)
    for request in requests:
        engine.add(request)
    while not engine.idle:
        report = engine.step()
        now = perf_counter() - started
        side.computed_tokens += report.prompt_tokens
        for made in report.generated:
            side.answers[made.request].append(made.token)
            side.first.setdefault(made.request, now)
        if not report.prompt_tokens:
            side.gaps.append(report.seconds)
        prompt = f"{side.computed_tokens:,} prompt tokens computed"
        status_line(f"{name}: {prompt}, {side.tokens} of at most {most} tokens answered, {now:.0f} s")
    side.seconds, side.kv_bytes = perf_counter() - started, engine.peak_kv_bytes
    return side


def _output(
    sides: Sequence[Answered],
    prompts: Sequence[Sequence[int]],
    question: str,
    answer: str,
    noise: Mapping[str, float],
) -> Output:
    from chunkbench.bench.analysis.noise import complaint
    from chunkbench.bench.store.results import Noise
    from chunkbench.report.model import Column, Output, Table
    from chunkbench.report.numbers import megabytes, times

    without, shared = sides
    equal = sum(without.answers[name] == shared.answers[name] for name in shared.answers)
    facts: list[dict[str, Any]] = [
        {
            "side": side.name,
            "computed_prompt_tokens": side.computed_tokens,
            "kv_bytes": side.kv_bytes,
            "first_token_s": median(side.first.values()),
            "step_s": median(side.gaps),
            "tokens_per_s": side.tokens / side.seconds,
            "seconds": side.seconds,
        }
        for side in sides
    ]
    before, after = facts
    lines: list[tuple[str, Callable[[float], str], str]] = [
        ("prompt tokens computed", lambda value: f"{value:,.0f}", "computed_prompt_tokens"),
        ("K/V memory, MB", lambda value: megabytes(int(value)), "kv_bytes"),
        ("first token, s (median)", lambda value: f"{value:.2f}", "first_token_s"),
        ("gap between tokens, ms", lambda value: f"{1e3 * value:.1f}", "step_s"),
        ("all answers, s", lambda value: f"{value:.1f}", "seconds"),
        ("answer tokens per second", lambda value: f"{value:.1f}", "tokens_per_s"),
    ]
    gain = after["tokens_per_s"] / before["tokens_per_s"]
    rows = [
        (name, text(before[key]), text(after[key]), times(gain if key == "tokens_per_s" else before[key] / after[key]))
        for name, text, key in lines
    ]
    headings = ("", "without sharing", "with sharing", "gain")
    columns = tuple(
        Column[tuple[str, ...]](heading, partial(_cell, place), align="right" if place else "left")
        for place, heading in enumerate(headings)
    )
    lengths = sorted(map(len, prompts))
    noisy = complaint(Noise.model_validate(noise), 0.0)
    return Output(
        title=f"{USERS} users of smollm2-135m with one system prompt: prompts of {lengths[0]} to {lengths[-1]} tokens",
        headline=f"With sharing {times(gain)} the tokens per second; the same answers: {equal} of {USERS}.",
        tables=(Table("", columns, rows),),
        warnings=(f"noisy: {noisy}. Run it again when the machine has nothing else to do",) if noisy else (),
        legend=(f"Question: {question}", f"Answer: {answer.strip()}", ABOUT),
        data={
            "sides": facts,
            "noisy": noisy,
            "same_answers": equal,
            "users": USERS,
            "question": question,
            "answer": answer,
        },
    )


def _cell(place: int, row: tuple[str, ...]) -> str:
    return row[place]
