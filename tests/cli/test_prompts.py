"""`chunkbench prompts` and `traces`: files of users from end to end."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path

import pytest
from click import Command
from click.testing import CliRunner, Result

from chunkbench.bench.experiment import AttentionPoint, load_experiment
from chunkbench.cli.prompts import command as prompts_command
from chunkbench.cli.traces import command as traces_command
from chunkbench.traffic import read_traffic
from chunkbench.traffic.generated import GENERATED
from chunkbench.workloads.replay.result import ReplayPoint

SYSTEM = list(range(100, 1000))


def ran(command: Command, *words: object, refusal: str = "") -> Result:
    """What came of a command that ends well, or is refused with this message."""
    done = CliRunner().invoke(command, [*map(str, words)])
    assert (done.exit_code, refusal in done.stderr) == (2 if refusal else 0, True), done.output
    return done


@pytest.fixture
def traffic_file(tmp_path: Path) -> Path:
    path = tmp_path / "traffic.jsonl"
    prompts = [{"token_ids": [*SYSTEM, 5000 + i, *range(10)], "group": "chat"} for i in range(4)]
    prompts += [{"token_ids": [9, 9, i], "group": "odd # one"} for i in range(2)]
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    return path


def test_values_of_each_group(traffic_file: Path) -> None:
    done = ran(prompts_command, traffic_file, "--n-c", "89", "--format", "json")
    chat, odd = json.loads(done.stdout)
    assert (chat["group"], chat["prompts"], chat["shared_mean"], chat["common"]) == ("chat", 4, 900.0, 900)
    assert chat["ratio"] == pytest.approx(0.9)
    assert chat["tokens"] - chat["held"] == 3 * 896  # whole chunks of 64
    assert (odd["shared_max"], odd["saved"]) == (2, 0)
    for form in ("table", "markdown"):
        done = ran(prompts_command, traffic_file, "--format", form, "--model", "llama3-8b")
        for word in ("chat", "900", "Chameleon", "2,626", "llama3-8b", "128 KiB"):  # the paper's, too
            assert word in done.stdout


def test_the_written_experiment_is_valid(traffic_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    done = ran(prompts_command, traffic_file, "--experiment", path)
    assert f"chunkbench run {path}" in done.stderr
    points = load_experiment(path).points("cpu", "float32")
    assert [(point.n_c, point.batch_size) for point in points] == [(512, 4), (512, 2)]
    assert (points[1].tree, points[1].n_p) == (((2, 2),), 3)
    ran(prompts_command, traffic_file, "--experiment", path, refusal=f"{path} exists already")
    (tmp_path / "chain.jsonl").write_text("\n".join(json.dumps([*range(9 + number)]) for number in range(40)))
    chain = tmp_path / "chain.yaml"
    ran(prompts_command, tmp_path / "chain.jsonl", "--experiment", chain)
    (point,) = load_experiment(chain).points("cpu", "float32")
    assert point.batch_size == 32


def test_the_written_trace_can_be_read(traffic_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    ran(prompts_command, traffic_file, "--trace", path, "--n-c", "7")
    ran(prompts_command, traffic_file, "--trace", traffic_file, refusal=f"{traffic_file} exists already")
    trace = read_traffic(path)
    assert (len(trace.requests), trace.timed) == (6, False)
    assert {request.answer_tokens for request in trace.requests} == {7}
    assert sorted(len(request.prompt) for request in trace.requests)[:2] == [3, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{traffic}", "--trace", "/nowhere/x.jsonl"], "cannot be written"),
        (["missing.jsonl"], "missing.jsonl: cannot be read"),
        (["{traffic}", "--model", "llama9"], "neither a known model"),
        (["{traffic}", "--group-by", "tenant"], "has no field 'tenant'"),
        (["{empty}"], "no prompt in it"),
        (["{traffic}", "--experiment", "/nowhere/x.yaml"], "cannot be written"),
    ],
)
def test_wrong_usage(traffic_file: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    words = [word.format(traffic=traffic_file, empty=empty) for word in arguments]
    ran(prompts_command, *words, refusal=message)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 1000 * n, "input_length": 1100, "output_length": 10 + n, "hash_ids": [0, 1, 2 + n % 2]}
        for n in range(8)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_what_a_trace_shares(trace: Path) -> None:
    for form in ("table", "markdown"):
        done = ran(traces_command, trace, "--format", form, "--cache", "3")
        text = " ".join(done.stdout.split())
        for words in ("8 requests", "1.00 requests/s over 7 s", "1,100", "24 blocks of 512 tokens, 4 of them", "1,536"):
            assert words in text, words
    told = json.loads(ran(traces_command, trace, "--format", "json").stdout)
    assert (told["format"], told["block_tokens"], told["requests"]) == ("Mooncake", 512, 8)
    assert [one["cache_blocks"] for one in told["hits"]] == [1000, 10000, 30000, 50000, 100000, None]
    assert told["hits"][-1]["blocks"] == pytest.approx(20 / 24)


@pytest.mark.parametrize(
    "name",
    [
        *('a"b.jsonl', "a\\b.jsonl", "\U0001f600.jsonl", f"{'x' * 240}.jsonl", "a: b #c.jsonl", "it's.jsonl"),
        *["no-suffix", "sharegpt", "fixed", "1e3", "true", "010", "*a", "&a", "{a}", "-"],
        *("\u2028.jsonl", " led", "new\nline", "esc\x1b[31m"),
    ],
)
def test_an_experiment_is_valid_whatever_the_trace_is_called(trace: Path, tmp_path: Path, name: str) -> None:
    trace.rename(tmp_path / name)
    with contextlib.chdir(tmp_path):
        ran(traces_command, "--experiment", "replay", "--", name)
        (case, *_) = load_experiment("replay.yaml").points("cpu", "float32")
    assert isinstance(case, ReplayPoint)
    assert case.traffic is not None
    assert Path(case.traffic) == Path(name)
    assert case.traffic not in GENERATED


def test_no_experiment_is_written_that_cannot_be_read(trace: Path, tmp_path: Path) -> None:
    """A replay reads the file again, by its name."""
    text, pipe, odd = trace.read_text(), tmp_path / "pipe", trace.rename(tmp_path / "b\udcff.jsonl")
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_text, args=(text,)).start()
    for name, message in ((odd, "the name is not UTF-8"), (pipe, "is no regular file; a replay reads")):
        ran(traces_command, name, "--experiment", tmp_path / "r.yaml", refusal=message)
    assert {*tmp_path.iterdir()} == {odd, pipe}


LONG = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:00,1048577,1\n"
SMALL = json.dumps({"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [2**64]})


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (None, [], "t: cannot be read"),
        (SMALL + "\n{}", [], "t:2: has no"),
        (LONG, ["--trees", "t.json"], "t.json is not written, it would be no valid tree: 1048577 is outside 0 to"),
        (SMALL, ["--experiment", "r.yml"], ""),
    ],
)
def test_files_of_all_sizes(tmp_path: Path, text: str | None, options: list[str], message: str) -> None:
    if text is not None:
        (tmp_path / "t").write_text(text)
    with contextlib.chdir(tmp_path):
        ran(traces_command, "t", *options, refusal=message)
        assert message or len(load_experiment("r.yml").points("cpu", "float32")) == 1
        assert not Path("t.json").exists()


def test_the_forest_of_live_prompts_is_a_tree_of_an_experiment(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "busy.json"
    done = ran(traces_command, trace, "--trees", tmp_path / "busy", "--token-time", "0.3")
    told = f"wrote {out}: 4 sequences in 3 nodes, live at 4 s; 1,195 tokens stored once, 4,419 without sharing;"
    assert told in done.stderr
    sweep = done.stderr[done.stderr.index("sweep:") :]
    (tmp_path / "x.yaml").write_text(f"implementations: [chunk_attn]\n{sweep}")
    (point,) = load_experiment(tmp_path / "x.yaml").points("cpu", "float32")
    assert isinstance(point, AttentionPoint)
    assert (sum(point.prompt_lengths(0)), point.unique_prompt_tokens(0), point.heads) == (4419, 1195, 32)
    written = out.read_text()
    ran(traces_command, trace, "--trees", out, "--at", "0", refusal="exists already; give another name")
    assert out.read_text() == written


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
    trace: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    with contextlib.chdir(tmp_path):
        ran(traces_command, trace, *options, refusal=message)
    assert [path.name for path in tmp_path.iterdir()] == [trace.name]
