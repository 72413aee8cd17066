"""Transformers' answers, and what is said of a server's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from chunkbench.bench.store import open_run
from chunkbench.cli.main import cli
from chunkbench.report import build, render
from chunkbench.run_error import RunError
from chunkbench.traffic.texts import Texts, read_texts
from chunkbench.workloads import register
from chunkbench.workloads.serving.result import ServingResult
from tests.server.conftest import MISSING

if MISSING:
    pytest.skip(f"{', '.join(MISSING)} is not installed", allow_module_level=True)

import torch
import transformers

from chunkbench.workloads.serving.answers import Answers, QuestionSet
from tests.server.engine.models import sharp_module, write_byte_tokenizer, write_checkpoint

BEGIN = "You are a careful clerk who answers in few words. "
QUESTIONS = ["How many mills?", "And kettles, how many of them?", "Why?", "Where is the parcel now, and when ...?"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_tokenizer(write_checkpoint("llama-grouped", tmp_path_factory.mktemp("checkpoint")))


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Texts]:
    file = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    lines = [{"text": BEGIN + question} for question in QUESTIONS] + [{"text": "Alone."}, {"text": "long " * 99}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file, read_texts(str(file))


@pytest.fixture(scope="module")
def answers(folder: Path, texts: tuple[Path, Texts]) -> Answers:
    return Answers(QuestionSet(texts[1], folder, 5, 200, 12))


def test_answers_are_those_of_generate_one_by_one(answers: Answers) -> None:
    """Prompts of several lengths are padded behind what they share, and answered together."""
    module = sharp_module("llama-grouped", "eager")
    for question in answers.questions:
        made = module.generate(torch.tensor([question.prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0)
        assert question.answer == tuple(made[0, len(question.prompt) :].tolist())
        assert len(question.gaps) == 12
        assert min(question.gaps) >= 0
    assert {question.said for question in answers.questions} == {BEGIN + said for said in QUESTIONS} | {"Alone."}
    assert 0 < answers.error < 1e-3


def test_a_first_other_token_is_a_near_tie_or_different(answers: Answers) -> None:
    told = {question.prompt: list(question.answer) for question in answers.questions}
    same = answers.compare(told)
    assert (same.compared, same.near_ties, same.different) == (5, 0, 0)
    assert same.question == "Alone."
    near, far, short, silent, _ = answers.questions
    near.gaps[3] = answers.error / 2  # type: ignore[index]
    told[near.prompt][3] += 1
    told[far.prompt][3] += 1
    told[short.prompt].pop()
    told[silent.prompt] = []
    other = answers.compare(told)
    assert (other.compared, other.near_ties, other.different) == (4, 1, 2)


def test_some_servers_tell_the_token_that_ended_a_text(
    folder: Path, texts: tuple[Path, Texts], answers: Answers
) -> None:
    first = answers.questions[0]
    end = first.answer[2]
    transformers.GenerationConfig(eos_token_id=[end]).save_pretrained(folder)
    ended = Answers(QuestionSet(texts[1], folder, 5, 200, 12))
    (folder / "generation_config.json").unlink()
    question = next(question for question in ended.questions if question.prompt == first.prompt)
    length = first.answer.index(end)
    assert (question.answer, len(question.gaps)) == (first.answer[:length], length + 1)
    for told, different in ((first.answer[: length + 1], 0), (first.answer[:length] or [end], 0), (first.answer, 1)):
        assert ended.compare({question.prompt: told}).different == different


def test_too_few_short_texts_are_refused(folder: Path, texts: tuple[Path, Texts]) -> None:
    with pytest.raises(RunError, match="equal_answers: needs 6 texts of at most 200 tokens, and finds 5"):
        QuestionSet(texts[1], folder, 6, 200, 12)


@pytest.mark.slow
def test_a_run_compares_the_answers_of_its_servers(folder: Path, texts: tuple[Path, Texts], tmp_path: Path) -> None:
    file = tmp_path / "equal.yaml"
    file.write_text(
        "kind: serving\nimplementations: [chunk_llama, transformers]\nreference: chunk_llama\nrequests: 4\n"
        f"arrival_seeds: 2\nbudget: 90s\ntexts: {texts[0]}\nequal_answers: 5\n"
        f"defaults: {{model: {folder}, n_c: 12, batch_size: 4}}\nsweep: [{{n_p: 200, n_s: 100, load: 80}}]\n"
    )
    result = CliRunner().invoke(cli, ["run", str(file), "--out", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    register()
    run = open_run(tmp_path / "run")
    for case in run.cases:
        assert isinstance(case, ServingResult)
        assert case.equal_answers is not None
        assert case.status in ("ok", "noisy")  # a busy machine sends late
        assert (case.equal_answers.compared, case.equal_answers.different) == (5, 0)
        assert case.equal_answers.question == "Alone."
    text = " ".join(render(build(run), "table").split())
    assert "one of the questions: Alone. ChunkLlama, transformers: " in text
    assert "5 of 5" in text


def test_it_needs_texts(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(
        "kind: serving\nimplementations: [chunk_llama]\nequal_answers: 3\nsweep: [{n_p: 8, n_s: 0, load: 80}]\n"
    )
    result = CliRunner().invoke(cli, ["validate", str(file)])
    assert result.exit_code == 2
    assert "equal_answers: needs texts: a set or a file of questions" in result.output
