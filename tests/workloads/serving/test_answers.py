"""Answers of the compared servers: equal ones, and those that follow constraints."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from chunkbench.bench.store import Run, open_run
from chunkbench.cli.main import cli
from chunkbench.report.build import build
from chunkbench.report.formats import render
from chunkbench.run_error import RunError
from chunkbench.traffic import PlannedRequest
from chunkbench.traffic.load.answer import Tokens
from chunkbench.traffic.texts import Texts, read_texts
from chunkbench.workloads import register
from chunkbench.workloads.serving import strip
from chunkbench.workloads.serving.result import ConstrainedAnswers, ServerFacts, ServingResult
from chunkbench.workloads.serving.servers.chunk_llama import StepLog
from chunkbench.workloads.serving.tasks import SHARE_BYTES, constrained_answers, first_invalid, prompts_of, regex_of
from tests.conftest import MISSING
from tests.workloads.made import drawn, measurement, serving_facts

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
    assert {question.last_message for question in answers.questions} == {BEGIN + said for said in QUESTIONS} | {
        "Alone."
    }
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


CHARACTER = (
    '{"name":"Edel Isionna","house":"Ember","blood_status":"Mixed","occupation":"Writer","wand":{"wood":"Oak",'
    '"core":"Hair","length":10.5},"alive":"Deceased","patronus":"Owl","bogart":"Moth"}'
)
FACTS = '{"name":"Eda","country":"Iland","latitude":-3.5,"population":90,"landmarks":["the mill","a pier","gate"]}'
WORK = {"sampled": 6, "pieces": 2, "forced": 4, "rolled_back": 1, "mask_s": 1e-3, "automaton_s": 2e-3}


@pytest.mark.parametrize(("task", "answer"), [("character", CHARACTER), ("facts", FACTS)])
def test_answers_are_json_with_ascii_classes(task: Any, answer: str) -> None:
    regex = regex_of(task)
    assert re.fullmatch(regex, answer)
    assert not re.fullmatch(regex, answer + " ")
    assert not re.search(r"\\[wsdb]", regex)


@pytest.mark.parametrize("forced", [0, 1, 3, 4, 10, 25, 50, 75, 90, 95])
def test_share_has_the_share_of_fixed_bytes(forced: int) -> None:
    regex = regex_of("share", forced)
    free = sum(map(int, re.findall(r"\[a-z \]\{(\d+)\}", regex)))
    answer = re.sub(r"\[a-z \]\{(\d+)\}", lambda match: "x" * int(match[1]), regex).replace("\\", "")
    assert re.fullmatch(regex, answer)
    assert len(answer) == SHARE_BYTES
    assert 1 - free / SHARE_BYTES == pytest.approx(forced / 100)
    if forced >= 4:
        values = json.loads(answer)
        assert len(values) == min(4, (2 * forced - 1) // 7)


@pytest.mark.parametrize("task", ["character", "facts", "share"])
def test_prompts_differ_and_follow_the_seed(task: Any) -> None:
    prompts = prompts_of(task, 100, "a")
    assert len(set(prompts)) == 100
    assert prompts == prompts_of(task, 100, "a")
    assert not {*prompts} & {*prompts_of(task, 100, "b")}


def told(text: str, number: int, finish: str = "stop") -> Tokens:
    tokens = Tokens()
    tokens.add({"id": f"r{number}", "choices": [{"text": text}]}, 1.0)
    tokens.add({"id": f"r{number}", "choices": [{"text": "", "finish_reason": finish}]}, 1.0)
    tokens.add({"id": f"r{number}", "choices": [], "usage": {}}, 1.0)
    return tokens


def test_answers_are_judged_and_joined_with_the_servers_log(tmp_path: Path) -> None:
    texts = [("ab", "stop"), ("abx", "stop"), ("a", "length"), ("abb", "length")]
    plan = [PlannedRequest(0.0, (number,), 9, exact=False, regex="ab+") for number in range(5)]
    answers = {(number,): told(text, number, finish) for number, (text, finish) in enumerate(texts)}
    lines = [
        {"id": "r0", "received": 1.5, "constrained": {**WORK, "spans": [[1, 2]]}},
        {"id": "r1", "received": 1.6, "constrained": {**WORK, "spans": []}},
        {"id": "r2", "received": 0.5, "constrained": {**WORK, "spans": []}},  # before the window
        {"id": "r3", "received": 1.7},
    ]
    (tmp_path / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    log = StepLog(tmp_path / "steps.jsonl")
    facts = constrained_answers(plan, answers, log, (1.0, 2.0), keep=True, wait_s=0.0)
    assert (facts.valid, facts.cut, facts.invalid) == (2, 1, 2)  # the fifth never came
    assert facts.work == {**{name: 2 * value for name, value in WORK.items()}, "told": 2}
    assert facts.texts == ("ab", "abx", "a", "abb", "")
    assert facts.spans == (((1, 2),), (), (), (), ())
    assert first_invalid(plan, answers) == "abx"


def row(system: str, per_s: float, work: bool, clients: int) -> ServingResult:
    """A system that answers two requests in 2 / per_s seconds."""
    measured = []
    for seed in (0, 1):
        made = measurement(seed, 0.2 / per_s)
        requests = tuple(request.model_copy(update={"due": 0.0, "last": 2 / per_s}) for request in made.requests)
        answers = ConstrainedAnswers(
            regex=regex_of("character"),
            valid=2,
            cut=0,
            invalid=0,
            work={**WORK, "retokenize_s": 0.5, "compile_s": 0.02, "told": 2} if work else {},
            texts=() if seed else (CHARACTER, CHARACTER.replace("Oak", system)),
            spans=() if seed or not work else (((0, 9),), ()),
        )
        server = ServerFacts(sampled=False, every_step=((0.1, 2, 0, 0.01), (0.2, 2, 0, 0.03), (0.3, 2, 9, 1.0)))
        measured.append(made.model_copy(update={"requests": requests, "constrained": answers, "server": server}))
    facts = serving_facts(system, n_p=64, measurements=measured)
    update = {"load": None, "clients": clients, "requests_per_s": None, "reference": "", "key": f"{system} {clients}"}
    return facts.model_copy(update=update)


@pytest.fixture
def run(make_run: Any) -> Run:
    systems = {"chunk_llama_mask": 1.0, "chunk_llama_jump": 1.5, "vllm": 0.5}
    rows = [row(name, speed * n, name != "vllm", n) for n in (1, 8) for name, speed in systems.items()]
    made: Run = make_run(rows, name="constrained", kind="serving", baseline="chunk_llama_mask")
    return made


def test_the_figure_shows_answers_over_clients_and_who_wrote_one(run: Run) -> None:
    answers, below = drawn(run).axes[:2]
    assert (answers.get_xlabel(), answers.get_ylabel()) == ("clients", "answers per second")
    assert [1.0, 8.0] in [pytest.approx(list(line.get_ydata())) for line in answers.get_lines()]
    written = "".join(text.get_text() for text in below.texts if len(text.get_text()) == 1)
    assert written == 2 * CHARACTER  # of vllm nothing is known
    drawn_in = [to_hex(patch.get_facecolor()).upper() for patch in below.patches[len(strip.WRITERS) :]]
    model, alone, appended = strip.WRITERS.values()
    assert drawn_in[: len(CHARACTER)].count(appended) == 9  # the span that the server told
    assert drawn_in[CHARACTER.index("Edel")] == model
    assert drawn_in[CHARACTER.index("mber")] == alone  # after E there is one house


def test_an_answer_with_a_dollar_and_a_control_character_is_drawn() -> None:
    figure, svg = Figure(), StringIO()
    text = "a$b$\x1b"
    strip.draw(figure.subplots(), [strip.Written("vLLM", text, ["appended"] * len(text))])
    figure.savefig(svg, format="svg")
    ElementTree.fromstring(svg.getvalue())
    assert [part.get_text() for part in figure.axes[0].texts[-len(text) :]] == ["a", r"\$", "b", r"\$", "\ufffd"]
