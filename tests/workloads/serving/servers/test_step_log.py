"""What a server's log of steps says about a window of time."""

from __future__ import annotations

import json
from pathlib import Path

from chunkbench.workloads.serving.result import ServerFacts
from chunkbench.workloads.serving.servers.chunk_llama import StepLog


def test_steps_in_a_window_and_the_idle_time_between_them(tmp_path: Path) -> None:
    steps = [(1.0, 1), (2.0, 2), (2.1, 3), (5.0, 4), (9.0, 5)]
    fields = {"s": 0.1, "overhead_s": 0.01, "tree_s": 0.002, "prompt_tokens": 7, "kv_bytes": 64}
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(json.dumps({**fields, "ended": ended, "batch": batch}) + "\n" for ended, batch in steps))
    moments = StepLog(path).between(1.5, 6.0)
    assert [(moment.at, moment.batch) for moment in moments] == [(2.0, 2), (2.1, 3), (2.1, 0), (4.9, 0), (5.0, 4)]
    assert [moment.kv_bytes for moment in moments] == [64, 64, 0, 0, 64]
    assert [moment.seconds for moment in moments] == [0.1, 0.1, None, None, 0.1]
    facts = ServerFacts.of(moments, 1.5, sampled=False)
    assert facts is not None
    assert (facts.steps, facts.overhead_s, facts.tree_s) == (3, 0.01, 0.002)
