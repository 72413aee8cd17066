"""`chunkbench prompts` from end to end, on token ids."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from chunkbench.bench.experiment import load_experiment
from chunkbench.cli.prompts import command
from chunkbench.traffic import read_traffic

SYSTEM = list(range(100, 1000))


@pytest.fixture
def traffic(tmp_path: Path) -> Path:
    path = tmp_path / "traffic.jsonl"
    prompts = [{"token_ids": [*SYSTEM, 5000 + i, *range(10)], "group": "chat"} for i in range(4)]
    prompts += [{"token_ids": [9, 9, i], "group": "odd # one"} for i in range(2)]
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    return path


def test_values_of_each_group(traffic: Path) -> None:
    done = CliRunner().invoke(command, [str(traffic), "--n-c", "89", "--format", "json"])
    assert done.exit_code == 0, done.output
    chat, odd = json.loads(done.stdout)
    assert (chat["group"], chat["prompts"], chat["shared_mean"], chat["common"]) == ("chat", 4, 900.0, 900)
    assert chat["ratio"] == pytest.approx(0.9)
    assert chat["tokens"] - chat["held"] == 3 * 896  # whole chunks of 64
    assert (odd["shared_max"], odd["saved"]) == (2, 0)


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_tables_show_the_papers_values_too(traffic: Path, form: str) -> None:
    done = CliRunner().invoke(command, [str(traffic), "--format", form, "--model", "llama3-8b"])
    assert done.exit_code == 0, done.output
    for word in ("chat", "900", "Chameleon", "2,626", "llama3-8b", "128 KiB"):
        assert word in done.stdout


def test_the_written_experiment_is_valid(traffic: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    done = CliRunner().invoke(command, [str(traffic), "--experiment", str(path)])
    assert done.exit_code == 0, done.output
    assert f"chunkbench run {path}" in done.stderr
    points = load_experiment(path).points("cpu", "float32")
    assert [(point.n_c, point.batch_size) for point in points] == [(512, 4), (512, 2)]
    assert (points[1].tree, points[1].n_p) == (((2, 2),), 3)
    again = CliRunner().invoke(command, [str(traffic), "--experiment", str(path)])
    assert again.exit_code == 2
    assert f"{path} exists already" in again.stderr


def test_the_written_trace_can_be_read(traffic: Path, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    done = CliRunner().invoke(command, [str(traffic), "--trace", str(path), "--n-c", "7"])
    assert done.exit_code == 0, done.output
    over_itself = CliRunner().invoke(command, [str(traffic), "--trace", str(traffic)])
    assert f"{traffic} exists already" in over_itself.stderr
    trace = read_traffic(path)
    assert (len(trace.requests), trace.timed) == (6, False)
    assert {request.answer_tokens for request in trace.requests} == {7}
    assert sorted(len(request.prompt) for request in trace.requests)[:2] == [3, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{traffic}", "--trace", "/nowhere/x.jsonl"], "cannot be written"),
        (["missing.jsonl"], "missing.jsonl: cannot be read"),
        (["{traffic}", "--model", "llama9"], "no known model"),
        (["{traffic}", "--group-by", "tenant"], "has no field 'tenant'"),
        (["{empty}"], "no prompt in it"),
        (["{traffic}", "--experiment", "/nowhere/x.yaml"], "cannot be written"),
    ],
)
def test_wrong_usage(traffic: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    words = [word.format(traffic=traffic, empty=empty) for word in arguments]
    done = CliRunner().invoke(command, words)
    assert done.exit_code == 2
    assert message in done.stderr


def test_prompts_that_each_extend_the_one_before_make_a_valid_experiment(tmp_path: Path) -> None:
    (tmp_path / "chain.jsonl").write_text("\n".join(json.dumps([*range(9 + number)]) for number in range(40)))
    path = tmp_path / "chain.yaml"
    done = CliRunner().invoke(command, [str(tmp_path / "chain.jsonl"), "--experiment", str(path)])
    assert done.exit_code == 0, done.output
    (point,) = load_experiment(path).points("cpu", "float32")
    assert point.batch_size == 32
