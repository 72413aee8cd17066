"""Workers of older revisions, which `regress --base` measures, report some facts by their former names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from chunkbench.runner.case_facts import CaseRounds
from chunkbench.runner.client import WorkerClient
from chunkbench.runner.survey import survey


def test_a_look_is_a_style() -> None:
    entry = {"label": "Naive", "ok": True, "reason": "", "remedy": "", "look": {"place": 100, "line": "solid"}}
    worker = SimpleNamespace(ask=lambda *_, **__: {"naive": dict(entry)}, kill=lambda: None)
    _, traits = survey(["naive"], "cpu", lambda: cast(WorkerClient, worker))
    assert traits["naive"].ok
    assert traits["naive"].style == entry["look"]


def test_yardsticks_are_the_calibration() -> None:
    reply: dict[str, Any] = {"samples_us": [1.0], "append_us": [1.0], "plan_us": [1.0]}
    rounds = CaseRounds()
    rounds.add(reply | {"yardsticks": {"arithmetic_us": 60.0, "memory_us": None}}, 0)
    assert [times.arithmetic_us for times in rounds.calibration] == [60.0]
