"""`kind: answers`: runs, recall, claims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from chunkbench.attention.windows import HeadPolicy
from chunkbench.bench.analysis.derive import derive
from chunkbench.bench.store import open_run
from chunkbench.cli.main import cli
from chunkbench.report.build import build
from chunkbench.report.claims import Claim, claims
from chunkbench.server.engine import Engine, EngineOptions, Request
from chunkbench.workloads.answers.haystack import NEEDLES, haystack
from chunkbench.workloads.answers.metrics import METRICS, by_depth
from chunkbench.workloads.answers.recall import CompressedContext, deviation, read
from chunkbench.workloads.answers.result import AnswersContext, AnswersResult
from tests.server.engine.models import VOCABULARY, answers_of, small_model

EXPERIMENT = """
kind: answers
budget: 60s
contexts: 1
held: 32
tested: 60
implementations: [all_heads, retrieval_heads, no_heads]
sweep:
  - {n_p: [600, 1200], window: 64}
  - {n_p: 8190, window: 64}
"""


def run(folder: Path, text: str) -> tuple[int, str]:
    (folder / "experiment.yaml").write_text(text)
    words = ["run", str(folder / "experiment.yaml"), "--out", str(folder / "run")]
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    return done.exit_code, done.output


@pytest.mark.slow
def test_retrieval_heads_find_what_windows_lost(tmp_path: Path) -> None:
    code, output = run(tmp_path, EXPERIMENT)
    assert code == 0, output
    assert (tmp_path / "run" / "figure.png").is_file()
    report = build(open_run(tmp_path / "run"))
    found = {
        (row.facts.implementation, row.facts.axis("n_p")): {
            name: metric.value(row.facts) or 0 for name, metric in METRICS.items()
        }
        for row in report.rows
    }
    for n_p in (600, 1200):
        everything, retrieval, none = (found[f"{name}_heads", n_p] for name in ("all", "retrieval", "no"))
        assert everything["found"] == everything["findable"] >= 8
        assert retrieval["found"] > none["found"]
        assert everything["kv_share"] == 1 > retrieval["kv_share"] > none["kv_share"]
        assert retrieval["deviation"] < none["deviation"]
    long = [row.facts for row in report.rows if row.facts.axis("n_p") == 8190]
    assert {(facts.status, "n_p is at most 8153" in facts.reason) for facts in long} == {("unsupported", True)}


def test_only_needles_that_the_model_finds_count() -> None:
    facts = answers("retrieval_heads", 6, findable=8)
    found = [METRICS[name].value(facts) for name in ("found", "findable", "needles", "found_share")]
    assert found == [6, 8, 10, 0.75]
    assert by_depth(facts) == [*(1.0,) * 6, *(0.0,) * 2, None, None]


def words(text: str) -> list[int]:
    """A token for each character."""
    return list(text.encode())


def test_needles_lie_at_equal_distances_in_real_text() -> None:
    text = haystack(words, 6000, 50, seed=3)
    context = bytes(text.context).decode()
    assert (len(text.context), len(text.held)) == (6000, 50)
    for place, (question, value) in enumerate(zip(text.questions, text.values, strict=True)):
        needle = f"{bytes(question).decode().strip()} {value}."
        assert abs(context.index(needle) - (2 * place + 1) / (2 * NEEDLES) * 6000) < 300
    assert haystack(words, 6000, 50, seed=3) == text != haystack(words, 6000, 50, seed=4)


def test_answers_are_those_of_the_engine() -> None:
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(VOCABULARY, (300,), generator=generator).tolist()
    model, questions = small_model(), [[1, 2, 3], [7]]
    context = read(model, tokens)
    asked = [Request(str(n), tokens + question, 5) for n, question in enumerate(questions)]
    expected = answers_of(Engine(model, EngineOptions(kv_bytes=1 << 24)), *asked)
    full = HeadPolicy(((True, True),) * 2, 64, compress="all")
    wide = HeadPolicy(((False, False),) * 2, 400, compress="all")
    for policy in (None, full, wide):
        compressed = CompressedContext(model, context, policy)
        assert compressed.answers(questions, 5) == list(expected.values())
        held = tokens[:20]
        one_by_one = [compressed.read_on(held[: n + 1]).next_tokens[-1] for n in range(len(held))]
        assert compressed.read_on(held).next_tokens == one_by_one
    assert deviation(context, full).all < 1e-12
    narrow = HeadPolicy(((False, True), (True, False)), 64, compress="all")
    small = CompressedContext(model, context, narrow)
    assert small.kv_bytes < CompressedContext(model, context, None).kv_bytes
    assert small.answers(questions, 5) != list(expected.values())
    assert deviation(context, narrow).all > 0.01
    assert deviation(context, None).worst < 1e-12
    rounded = deviation(context, None, "int8")
    assert 0 < rounded.median <= rounded.worst < 0.05


def judge(*results: Any, baseline: str = "chunk_attn") -> dict[str, Claim]:
    return {claim.id: claim for claim in claims([derive(list(results), baseline)])}


def answers(name: str, found: int, findable: int = NEEDLES) -> AnswersResult:
    context = AnswersContext(
        context_seed=0,
        found=tuple(place < found for place in range(NEEDLES)),
        found_by_all=tuple(place < findable for place in range(NEEDLES)),
        agreement=0.5,
        deviation=0.1,
        kv_bytes=3,
        full_bytes=10,
    )
    common = {"experiment": "razor-answers", "device": "cpu", "dtype": "bfloat16", "status": "ok", "n_p": 4000}
    named = {"key": name, "implementation": name, "label": name, "window": 256, "contexts": [context]}
    return AnswersResult.model_validate(common | named)


ANSWERED = {"retrieval_heads": 9, "random_heads": 3, "no_heads": 2}


@pytest.mark.parametrize(
    ("id", "found", "verdict", "measured"),
    [
        ("RZ-heads", ANSWERED, "holds", 0.6),
        ("RZ-heads", ANSWERED | {"retrieval_heads": 3}, "does not hold", 0.0),
        ("RZ-heads", {"retrieval_heads": 9, "random_heads": 3}, "not measured", None),
        ("RZ-compensation", {"retrieval_heads": 8, "retrieval_heads_plain": 4}, "holds", 0.5),
        ("RZ-compensation", {"retrieval_heads": 0, "retrieval_heads_plain": 0}, "cannot tell", None),
        ("RZ-compensation", {"retrieval_heads": 8, "retrieval_heads_plain": 7}, "different here", 0.125),
        ("RZ-compensation", {"retrieval_heads": 8, "retrieval_heads_plain": 9}, "does not hold", -0.125),
        ("RZ-echo", {"retrieval_heads": 8, "induction_heads": 8}, "does not hold", 0.0),
    ],
)
def test_claims_on_what_is_found(id: str, found: dict[str, int], verdict: str, measured: float | None) -> None:
    judged = judge(*(answers(name, count) for name, count in found.items()), baseline="all_heads")[id]
    assert judged.verdict == verdict
    assert measured is None or judged.measured == pytest.approx(measured)
