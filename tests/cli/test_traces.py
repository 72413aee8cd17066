"""`chunkbench traces` from end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from chunkbench import traffic
from chunkbench.bench.experiment import AttentionPoint, load_experiment
from chunkbench.cli.traces import command
from chunkbench.traffic.generated import GENERATED
from chunkbench.workloads.replay.result import ReplayPoint


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 1000 * n, "input_length": 1100, "output_length": 10 + n, "hash_ids": [0, 1, 2 + n % 2]}
        for n in range(8)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_tables(trace: Path, form: str) -> None:
    done = CliRunner().invoke(command, [str(trace), "--format", form, "--cache", "3"])
    assert done.exit_code == 0, done.output
    text = " ".join(done.stdout.split())
    for words in ("8 requests", "1.00 requests/s over 7 s", "1,100", "24 blocks of 512 tokens, 4 of them", "1,536"):
        assert words in text, words


def test_json(trace: Path) -> None:
    done = CliRunner().invoke(command, [str(trace), "--format", "json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["format"], told["block_tokens"], told["requests"]) == ("Mooncake", 512, 8)
    assert [one["cache_blocks"] for one in told["hits"]] == [1000, 10000, 30000, 50000, 100000, None]
    assert told["hits"][-1]["blocks"] == pytest.approx(20 / 24)


def test_a_bad_line_ends_with_its_place(trace: Path) -> None:
    trace.write_text(trace.read_text() + "{}\n")
    done = CliRunner().invoke(command, [str(trace)])
    assert done.exit_code == 2
    assert "trace.jsonl:9: has no" in done.stderr


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, [str(tmp_path / "none.jsonl")])
    assert done.exit_code == 2
    assert "none.jsonl: cannot be read" in done.stderr


@pytest.mark.parametrize(
    "name",
    [
        *(
            'a"b.jsonl',
            "a\\b.jsonl",
            "\U0001f600.jsonl",
            f"{'x' * 240}.jsonl",
            "a: b #c.jsonl",
            "it's.jsonl",
            "\u2028.jsonl",
        ),
        *(
            "no-suffix",
            "sharegpt",
            "fixed",
            "1e3",
            "true",
            "010",
            "*a",
            "&a",
            "{a}",
            "-",
            " led",
            "new\nline",
            "esc\x1b[31m",
        ),
    ],
)
def test_an_experiment_is_valid_whatever_the_trace_is_called(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    trace.rename(name)
    done = CliRunner().invoke(command, ["--experiment", "replay", "--", name])
    assert done.exit_code == 0, done.output
    (case, *_) = load_experiment(tmp_path / "replay.yaml").points("cpu", "float32")
    assert isinstance(case, ReplayPoint)
    assert case.traffic is not None
    assert Path(case.traffic) == Path(name)
    assert case.traffic not in GENERATED


def test_small_traces_have_valid_experiments(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [2**64]}))
    done = CliRunner().invoke(command, [str(path), "--experiment", str(tmp_path / "r.yml")])
    assert done.exit_code == 0, done.output
    assert len(load_experiment(tmp_path / "r.yml").points("cpu", "float32")) == 1


@pytest.mark.parametrize(
    ("name", "message"), [("b\udcff.jsonl", "the name is not UTF-8"), ("/dev/stdin", "is no file; a replay reads")]
)
def test_no_experiment_is_written_that_cannot_be_read(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if name != "/dev/stdin":
        trace.rename(name)
    else:
        read = traffic.read_traffic
        monkeypatch.setattr(traffic, "read_traffic", lambda path: read(trace))
    done = CliRunner().invoke(command, [name, "--experiment", "r.yaml"])
    assert (done.exit_code, message in done.stderr) == (2, True), done.output
    assert [path.name for path in tmp_path.iterdir()] == [trace.name if name == "/dev/stdin" else name]


def test_the_forest_of_live_prompts_is_a_tree_of_an_experiment(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "busy.json"
    done = CliRunner().invoke(command, [str(trace), "--trees", str(tmp_path / "busy"), "--token-time", "0.3"])
    assert done.exit_code == 0, done.output
    told = f"wrote {out}: 4 sequences in 3 nodes, live at 4 s; 1,195 tokens stored once, 4,419 without sharing;"
    assert told in done.stderr
    sweep = done.stderr[done.stderr.index("sweep:") :]
    (tmp_path / "x.yaml").write_text(f"implementations: [chunk_attn]\n{sweep}")
    (point,) = load_experiment(tmp_path / "x.yaml").points("cpu", "float32")
    assert isinstance(point, AttentionPoint)
    assert (sum(point.prompt_lengths(0)), point.unique_prompt_tokens(0), point.heads) == (4419, 1195, 32)
    written = out.read_text()
    done = CliRunner().invoke(command, [str(trace), "--trees", str(out), "--at", "0"])
    assert (done.exit_code, out.read_text()) == (2, written)
    assert "exists already; give another name" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--at", "3"], "--at, --token-time and --most belong to --trees"),
        (["--trees", "t", "--at", "99"], "no request is live at 99 s; they are due from 0 s on, the last one at 7 s"),
        (["--trees", "none/t"], "none/t.json: cannot be written"),
        (["--trees", "b\udcff"], "the name is not UTF-8"),
    ],
)
def test_no_forest_is_written_that_cannot_be_used(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(command, [str(trace), *options])
    assert (done.exit_code, message in done.stderr) == (2, True), done.output
    assert [path.name for path in tmp_path.iterdir()] == [trace.name]


def test_a_prompt_that_is_too_long_for_an_experiment(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:00,1048577,1\n")
    done = CliRunner().invoke(command, [str(path), "--trees", str(tmp_path / "t.json")])
    assert done.exit_code == 2
    assert "t.json is not written, it would be no valid tree: 1048577 is outside 0 to 1048576" in done.stderr
    assert not (tmp_path / "t.json").exists()
