"""Output and exit codes of `chunkbench compare` and `history`, on complete and on damaged run directories."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

from chunkbench.bench.store import Calibration, DecodeResult, RunWriter
from chunkbench.cli.main import cli
from chunkbench.report.compare.verdicts import Comparison
from tests.command import chunkbench
from tests.invented_runs import facts_of

MANIFEST = {
    "experiment": {"name": "x", "budget_s": 20},
    "chunkbench_version": "0.1.0",
    "device": "cpu",
    "environment": {"cpu": {"model": "Invented"}},
    "git": {"commit": "c0ffee" * 7, "dirty": False},
    "started_at": "2026-01-01T00:00:00+00:00",
}
DICE = np.random.default_rng(0)


def case(key: str, us: float = 100.0) -> DecodeResult:
    rounds = tuple((float(us * DICE.lognormal(0, 0.02)),) for _ in range(60))
    calibration = (Calibration(arithmetic_us=60.0),) * len(rounds)
    return facts_of(
        f"impl_{key}", key=key, experiment="x", label=key, n_p=8, n_s=0, steps=(1,), samples_us=rounds, kv_bytes=64,
        calibration=calibration,
    )  # fmt: skip


def write(path: Path, cases: Sequence[DecodeResult], **manifest: object) -> Path:
    writer = RunWriter.create(path, MANIFEST | manifest)
    writer.append(cases)
    writer.close()
    return path


def run(*words: str | Path, code: int = 0, **environment: str) -> str:
    """What a command printed that ended with this exit code."""
    done = CliRunner().invoke(cli, [str(word) for word in words], env=environment)
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write(tmp_path / "base", [case("a"), case("b")])


def test_unchanged_cases_pass(base: Path, tmp_path: Path) -> None:
    printed = run("compare", base, write(tmp_path / "head", [case("a"), case("b")]))
    assert "2 same: passes (exit code 0)" in printed


def test_a_slower_case_fails_and_every_report_is_written(base: Path, tmp_path: Path) -> None:
    head = write(tmp_path / "head", [case("a", 150.0), case("b")])
    words = ["compare", str(base / "cases.jsonl"), str(head), "--out", str(tmp_path / "out"), "--format", "json"]
    done = chunkbench(*words)
    assert done.code == 1
    comparison = Comparison.model_validate_json(done.stdout)
    assert [verdict.verdict for verdict in comparison.cases] == ["slower", "same"]
    assert comparison.command == f"chunkbench {' '.join(words)}"
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"comparison.txt", "comparison.md", "comparison.json", "comparison.xml", "summary.md"} <= names
    run("compare", base, head, "--fail-on", "none", "-q")
    assert run("compare", base, head, "-q", code=1) == ""
    summary = tmp_path / "summary"
    annotations = run("compare", base, head, "--format", "github", code=1, GITHUB_STEP_SUMMARY=str(summary))
    assert annotations.startswith("::error title=slower%3A impl_a")
    assert "slower" in summary.read_text()


def test_what_cannot_be_compared_is_refused(base: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other", [case("z")], dtype="bfloat16")
    empty = tmp_path / "empty"
    empty.mkdir()
    torn, damaged = (write(tmp_path / name, [case("a"), case("b")]) / "cases.jsonl" for name in ("torn", "damaged"))
    torn.write_bytes(torn.read_bytes()[:-50])
    damaged.write_text("{" + damaged.read_text())
    for words, message in (
        (("compare", base, other), "implementations and protocols. dtype: None and bfloat16."),
        (("compare", base, write(tmp_path / "nothing", [])), "no case was measured, there is nothing to compare"),
        (("compare", torn, base), "not fit for a BASE, since the last line of cases.jsonl is incomplete"),
        (("compare", base, damaged), "cases.jsonl:1: damaged"),
        (("history", empty), "there is no run in it"),
        (("history", base, other, "--metric", "token_rates"), "no figure of kind: decode; did you mean token_rate?"),
    ):
        assert message in run(*words, code=2)


def test_history_finds_the_change_and_draws_it(tmp_path: Path) -> None:
    """Also with a label and a commit in which matplotlib sees mathematics, and which no SVG can hold."""
    strange = "c0f$\\nope{$\x1b"
    for number in range(12):
        started = f"2026-01-{number + 1:02}T00:00:00+00:00"
        measured = case("a", 100.0 if number < 6 else 130.0).model_copy(update={"label": strange})
        git = {"commit": strange, "dirty": False}
        write(tmp_path / "runs" / str(100 + number), [measured], started_at=started, git=git)
    printed = run("history", *sorted((tmp_path / "runs").iterdir()), "--out", tmp_path / "out")
    assert "1 case changed." in printed
    (series,) = json.loads((tmp_path / "out" / "history.json").read_text())
    assert [(change["index"], change["ratio"]) for change in series["changes"]] == [(6, pytest.approx(1.3, rel=0.02))]
    assert f"{series['changes'][0]['ratio']:.3f}x at c0f$\\nope{{$\ufffd" in printed
    assert (tmp_path / "out" / "history.png").stat().st_size > 10_000
    ElementTree.parse(tmp_path / "out" / "history.svg")


def test_speedups_between_dtypes(tmp_path: Path) -> None:
    paths = []
    for dtype, us in (("float32", 100.0), ("bfloat16", 40.0)):
        names = {"naive": 4 * us, "chunk_attn": us}
        cases = [case(name, value).model_copy(update={"implementation": name}) for name, value in names.items()]
        cases = [entry.model_copy(update={"dtype": dtype, "key": f"{entry.key} {dtype}"}) for entry in cases]
        paths.append(write(tmp_path / dtype, cases, dtype=dtype))
    assert "--between machines, dtypes or implementations compares speed-ups" in run("compare", *paths, code=2)
    printed = run("compare", *paths, "--between", "dtypes", "--out", tmp_path / "out")
    assert "Speed-ups over naive, between dtypes" in printed
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"speedups.txt", "speedups.md", "speedups.json"}
    run("compare", *paths, "--over", "naive", code=2)
    run("compare", *paths, "--between", "dtypes", "--format", "junit", code=2)
