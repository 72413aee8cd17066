"""Output and exit codes of `chunkbench compare` and `history`, on complete and on damaged run directories."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

from chunkbench.bench.store import Calibration, DecodeResult, RunWriter
from chunkbench.cli.main import cli
from chunkbench.report.compare.verdicts import Comparison

MANIFEST = {
    "experiment": {"name": "x", "budget_s": 20},
    "chunkbench_version": "0.1.0",
    "device": "cpu",
    "environment": {"cpu": {"model": "Invented"}},
    "git": {"commit": "c0ffee" * 7, "dirty": False},
    "started_at": "2026-01-01T00:00:00+00:00",
}
DICE = np.random.default_rng(0)


def case(key: str, us: float = 100.0, status: str = "ok") -> DecodeResult:
    rounds = tuple((float(us * DICE.lognormal(0, 0.02)),) for _ in range(60)) if status == "ok" else ()
    return DecodeResult(
        key=key, experiment="x", implementation=f"impl_{key}", label=key, n_p=8, n_s=0, n_c=1, batch_size=1, heads=1,
        kv_heads=1, head_dim=16, chunk_size=16, block_size=16, prompts=1, tree=None, dtype="float32", device="cpu",
        protocol="strict", cache="cold", mode="eager", status=status, samples_us=rounds, steps=(1,), kv_bytes=64,
        groups=(0,) * len(rounds), calibration=(Calibration(arithmetic_us=60.0),) * len(rounds),
    )  # fmt: skip


def write(path: Path, cases: Sequence[DecodeResult], **manifest: object) -> Path:
    writer = RunWriter.create(path, MANIFEST | manifest)
    writer.append(cases)
    writer.close()
    return path


def run(*words: str | Path) -> DecodeResult:
    return CliRunner().invoke(cli, [str(word) for word in words])


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write(tmp_path / "base", [case("a"), case("b")])


def test_unchanged_cases_pass(base: Path, tmp_path: Path) -> None:
    done = run("compare", base, write(tmp_path / "head", [case("a"), case("b")]))
    assert done.exit_code == 0, done.output
    assert "2 same: passes (exit code 0)" in done.output


def test_a_slower_case_fails_and_every_report_is_written(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/chunkbench", "compare", "base", "head"])
    head = write(tmp_path / "head", [case("a", 150.0), case("b")])
    done = run("compare", base / "cases.jsonl", head, "--out", tmp_path / "out", "--format", "json")
    assert done.exit_code == 1
    comparison = Comparison.model_validate_json(done.output)
    assert [verdict.verdict for verdict in comparison.cases] == ["slower", "same"]
    assert comparison.command == "chunkbench compare base head"
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"comparison.txt", "comparison.md", "comparison.json", "comparison.xml", "summary.md"} <= names
    assert run("compare", base, head, "--fail-on", "none", "-q").exit_code == 0
    assert run("compare", base, head, "-q").output == ""


def test_the_step_summary_gets_the_table(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    done = run("compare", base, write(tmp_path / "head", [case("a", 150.0), case("b")]), "--format", "github")
    assert done.exit_code == 1
    assert done.output.startswith("::error title=slower%3A impl_a")
    assert (
        "| slower | impl\\_a |" in (tmp_path / "summary").read_text() or "slower" in (tmp_path / "summary").read_text()
    )


@pytest.mark.parametrize(("status", "code"), [("incorrect", 3), ("crashed", 3), ("unavailable", 1)])
def test_a_case_that_fails(base: Path, tmp_path: Path, status: str, code: int) -> None:
    head = write(tmp_path / "head", [case("a"), case("b", status=status)])
    assert run("compare", base, head).exit_code == code


def tear(run_directory: Path) -> None:
    """Cut the last line short."""
    path = run_directory / "cases.jsonl"
    path.write_bytes(path.read_bytes()[:-50])


def test_a_torn_line_is_a_missing_case_with_a_warning(base: Path, tmp_path: Path) -> None:
    head = write(tmp_path / "head", [case("a"), case("b")])
    tear(head)
    done = run("compare", base, head)
    assert done.exit_code == 1
    assert "HEAD: the last line of cases.jsonl is incomplete" in done.output
    assert "1 missing" in done.output


def test_a_torn_base_is_refused(base: Path, tmp_path: Path) -> None:
    head = write(tmp_path / "head", [case("a"), case("b")])
    tear(base)
    done = run("compare", base, head)
    assert done.exit_code == 2
    assert "not fit for a BASE, since the last line of cases.jsonl is incomplete" in done.output


def test_a_file_damaged_inside_is_refused(base: Path, tmp_path: Path) -> None:
    head = write(tmp_path / "head", [case("a"), case("b")])
    lines = (head / "cases.jsonl").read_text().splitlines(keepends=True)
    (head / "cases.jsonl").write_text("{" + lines[0] + lines[1])
    done = run("compare", base, head)
    assert done.exit_code == 2
    assert "cases.jsonl:1: damaged" in done.output


def test_schema_versions(base: Path, tmp_path: Path) -> None:
    older = write(tmp_path / "older", [case("a"), case("b")])
    manifest = json.loads((older / "manifest.json").read_text())
    cases = [json.loads(line) for line in (older / "cases.jsonl").read_text().splitlines()]
    for line in cases:  # version 1 had no calibration
        del line["calibration"]
    (older / "manifest.json").write_text(json.dumps(manifest | {"schema_version": 1}))
    (older / "cases.jsonl").write_text("".join(json.dumps(line) + "\n" for line in cases))
    done = run("compare", older, base)
    assert done.exit_code == 0, done.output
    assert "no calibration kernels" in " ".join(done.output.split())
    slow = write(tmp_path / "slow", [case("a", 200.0), case("b")])
    assert run("compare", older, slow).exit_code == 1
    (older / "manifest.json").write_text(json.dumps(manifest | {"schema_version": 99}))
    done = run("compare", older, base)
    assert done.exit_code == 2
    assert "schema version 99, this chunkbench reads versions 1 to 10" in done.output


@pytest.mark.parametrize("empty", ["base", "head"])
def test_empty_runs_never_pass(base: Path, tmp_path: Path, empty: str) -> None:
    nothing = write(tmp_path / "nothing", [])
    done = run("compare", nothing, base) if empty == "base" else run("compare", base, nothing)
    assert done.exit_code == 2
    assert "no case was measured, there is nothing to compare" in done.output


def test_runs_without_a_common_case_are_refused_with_the_reason(base: Path, tmp_path: Path) -> None:
    done = run("compare", base, write(tmp_path / "head", [case("z")], dtype="bfloat16"))
    assert done.exit_code == 2
    assert "no case in common (dtype: None and bfloat16)" in done.output


def test_the_schema_is_printed() -> None:
    done = run("compare", "--schema")
    assert done.exit_code == 0
    assert json.loads(done.output)["title"] == "Comparison"


def test_history_finds_the_change_and_draws_it(tmp_path: Path) -> None:
    """Also with a label and a commit in which matplotlib sees mathematics, and which no SVG can hold."""
    strange = "c0f$\\nope{$\x1b"
    for number in range(12):
        started = f"2026-01-{number + 1:02}T00:00:00+00:00"
        measured = case("a", 100.0 if number < 6 else 130.0).model_copy(update={"label": strange})
        git = {"commit": strange, "dirty": False}
        write(tmp_path / "runs" / str(100 + number), [measured], started_at=started, git=git)
    done = run("history", *sorted((tmp_path / "runs").iterdir()), "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "1 case changed." in done.output
    (series,) = json.loads((tmp_path / "out" / "history.json").read_text())
    assert [(change["index"], change["ratio"]) for change in series["changes"]] == [(6, pytest.approx(1.3, rel=0.02))]
    assert f"{series['changes'][0]['ratio']:.3f}x at c0f$\\nope{{$\ufffd" in done.output
    assert (tmp_path / "out" / "history.png").stat().st_size > 10_000
    ElementTree.parse(tmp_path / "out" / "history.svg")


def test_history_of_a_folder_without_runs(tmp_path: Path) -> None:
    done = run("history", tmp_path)
    assert done.exit_code == 2
    assert "there is no run in it" in done.output


@pytest.mark.parametrize("command", ["compare", "history"])
def test_an_unknown_figure_lists_the_known_ones(base: Path, tmp_path: Path, command: str) -> None:
    done = run(command, base, write(tmp_path / "head", [case("a")]), "--metric", "token_rates")
    assert done.exit_code == 2
    assert (
        "--metric token_rates: no figure of kind: decode; did you mean token_rate? There are latency, " in done.output
    )
    assert "kv_bytes" in done.output


@pytest.mark.parametrize(
    ("metric", "levels", "heading"),
    [("kv_bytes", (64.0, 64.0), "level bytes"), ("token_rate", (1e4, 5e3), "level tokens/s")],
)
def test_history_of_another_figure(tmp_path: Path, metric: str, levels: tuple[float, float], heading: str) -> None:
    for number in range(12):
        started = f"2026-01-{number + 1:02}T00:00:00+00:00"
        measured = case("a", 100.0 if number < 6 else 200.0)
        write(tmp_path / "runs" / str(100 + number), [measured], started_at=started)
    done = run("history", *sorted((tmp_path / "runs").iterdir()), "--metric", metric, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert f"History of 1 case, {metric}" in done.output
    assert heading in done.output
    (series,) = json.loads((tmp_path / "out" / "history.json").read_text())
    values = [measurement["value"] for measurement in series["measurements"]]
    assert (values[0], values[-1]) == pytest.approx(levels, rel=0.02)
    assert len(series["changes"]) == (metric == "token_rate")
    assert f"{metric} / first level" in (tmp_path / "out" / "history.svg").read_text()


def test_speedups_between_dtypes(tmp_path: Path) -> None:
    paths = []
    for dtype, us in (("float32", 100.0), ("bfloat16", 40.0)):
        names = {"naive": 4 * us, "chunk_attn": us}
        cases = [case(name, value).model_copy(update={"implementation": name}) for name, value in names.items()]
        cases = [entry.model_copy(update={"dtype": dtype, "key": f"{entry.key} {dtype}"}) for entry in cases]
        paths.append(write(tmp_path / dtype, cases, dtype=dtype))
    refused = run("compare", *paths)
    assert refused.exit_code == 2
    assert "--between machines, dtypes or implementations compares speed-ups" in refused.output
    done = run("compare", *paths, "--between", "dtypes", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "Speed-ups over naive, between dtypes" in done.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"speedups.txt", "speedups.md", "speedups.json"}
    assert run("compare", *paths, "--over", "naive").exit_code == 2
    assert run("compare", *paths, "--between", "dtypes", "--format", "junit").exit_code == 2
