"""Whether the answers of a measurement follow their constraint, and what following it took the server."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from time import sleep
from typing import Any

from chunkbench.traffic import PlannedRequest, Prompt
from chunkbench.traffic.load.answer import Tokens
from chunkbench.workloads.serving.result import ConstrainedAnswers
from chunkbench.workloads.serving.servers.system import Watch

_TRIES = 10


def constrained_answers(
    plan: Sequence[PlannedRequest],
    told: Mapping[Prompt, Tokens],
    watch: Watch,
    window: tuple[float, float],
    keep: bool,
    wait_s: float = 0.1,
) -> ConstrainedAnswers:
    """Facts about the answers to a plan, prompt -> answer; `keep`: with their texts; `wait_s`: between
    looks into the server's log."""
    kinds = Counter(_kind(request, told) for request in plan)
    names = [told[request.prompt].request if request.prompt in told else "" for request in plan]
    for _ in range(_TRIES):
        works = watch.constrained(*window)
        if not works or works.keys() >= {*names}:
            break
        sleep(wait_s)  # a server writes about a request when its answer has been read
    sums: Counter[str] = Counter()
    for work in (works[name] for name in names if name in works):
        sums.update({fact: value for fact, value in work.items() if fact != "spans"}, told=1)
    return ConstrainedAnswers(
        regex=plan[0].regex,
        valid=kinds["valid"],
        cut=kinds["cut"],
        invalid=kinds["invalid"],
        work=dict(sums),
        texts=tuple(_text(request, told) for request in plan) if keep else (),
        spans=tuple(_spans(works.get(name, {})) for name in names) if keep and works else (),
    )


def first_invalid(plan: Sequence[PlannedRequest], told: Mapping[Prompt, Tokens]) -> str:
    """The first answer that breaks its constraint; there is one."""
    return next(_text(request, told) for request in plan if _kind(request, told) == "invalid")


def _kind(request: PlannedRequest, told: Mapping[Prompt, Tokens]) -> str:
    answer = told.get(request.prompt)
    if answer is not None and re.fullmatch(request.regex, answer.text):
        return "valid"
    return "cut" if answer is not None and answer.cut else "invalid"


def _text(request: PlannedRequest, told: Mapping[Prompt, Tokens]) -> str:
    return told[request.prompt].text if request.prompt in told else ""


def _spans(work: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    return tuple((begin, end) for begin, end in work.get("spans", ()))
