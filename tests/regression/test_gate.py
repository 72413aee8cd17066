"""The real gate on a point of a millisecond: without a change, and with a worker that has a deliberate fault."""

from __future__ import annotations

import functools
import json
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from chunkbench.experiment import TimedExperiment, load_experiment
from chunkbench.regression.compare import Options, compare
from chunkbench.regression.job import Repeats
from chunkbench.regression.recording import BUILD, next_number
from chunkbench.runner.target import resolve
from chunkbench.store import RunError, open_runs
from tests.command import chunkbench
from tests.regression.gates import gated, recorded

ROOT = Path(__file__).parents[2]
FAULTY = str(ROOT / "tests" / "slowed_worker.py")


@pytest.fixture
def experiment(spec: Path) -> TimedExperiment:
    loaded = load_experiment(spec)
    assert isinstance(loaded, TimedExperiment)
    return loaded


@pytest.fixture(scope="module")
def recorded_once(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording, made once: it takes some seconds."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "tiny.yaml").write_text(tiny)
    experiment = load_experiment(folder / "tiny.yaml")
    assert isinstance(experiment, TimedExperiment)
    recorded(experiment, folder / "recording", processes=2)
    return folder / "recording"


@pytest.fixture
def recording(recorded_once: Path, tmp_path: Path) -> Path:
    """A copy of the recording, which a test may damage."""
    return shutil.copytree(recorded_once, tmp_path / "recording")


def test_a_recording_has_several_runs_and_can_grow(recording: Path, experiment: TimedExperiment) -> None:
    runs = open_runs(recording)
    assert [run.path.name for run in runs] == ["1", "2"]
    for run in runs:
        assert {case.implementation for case in run.cases} == {"paged_attn", "chunk_attn"}
        assert all(len(case.yardsticks) == len(case.samples_us) >= 3 for case in run.cases)
        assert all(not case.peaks for case in run.cases)
    target = resolve(experiment)
    assert next_number(recording, experiment, target) == 3
    assert next_number(recording.parent / "new", experiment, target) == 1
    with pytest.raises(RunError, match="is a run, not a recording"):
        next_number(recording / "1", experiment, target)
    other = experiment.model_copy(update={"seed": 1})
    with pytest.raises(RunError, match="cannot be added to"):
        next_number(recording, other, target)


@pytest.mark.parametrize("as_recorded", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_wrong_results_are_found(
    recording: Path, experiment: TimedExperiment, tmp_path: Path, as_recorded: bool
) -> None:
    fault = (FAULTY, "chunk_attn", "wrong")
    comparison = gated(experiment, recording, Repeats(2, 0), as_recorded=as_recorded, program=fault)
    assert comparison.settings.in_turns is not as_recorded
    assert comparison.exit_code == 3
    assert {case.implementation: case.verdict for case in comparison.cases if case.failed} == {
        "chunk_attn": "incorrect"
    }


@pytest.mark.slow
def test_a_crash_is_found_and_the_other_case_is_measured(
    recording: Path, experiment: TimedExperiment, tmp_path: Path
) -> None:
    comparison = gated(experiment, recording, Repeats(2, 0), program=(FAULTY, "chunk_attn", "crash"))
    assert comparison.exit_code == 3
    crashed = next(case for case in comparison.cases if case.implementation == "chunk_attn")
    assert (crashed.verdict, crashed.failed) == ("missing", True)
    assert "SIGABRT" in crashed.reason
    assert next(case for case in comparison.cases if case.implementation == "paged_attn").head_rounds > 0


@pytest.mark.slow  # test_regress.py finds a slower HEAD in make test, test_remeasure.py measures it again
@pytest.mark.timeout(600)
@pytest.mark.parametrize("as_recorded", [False, True])
def test_twice_as_slow_is_measured_again(
    recording: Path, experiment: TimedExperiment, tmp_path: Path, as_recorded: bool
) -> None:
    out = tmp_path / "out"
    fault = (FAULTY, "chunk_attn", "1.0")
    comparison = gated(experiment, recording, Repeats(2, 1), as_recorded=as_recorded, program=fault)
    slowed = next(case for case in comparison.cases if case.implementation == "chunk_attn" and case.metric == "latency")
    # The certainty of two processes depends on the machine. That the case is measured again does not.
    assert slowed.ratio is None or slowed.ratio > 1.3
    assert slowed.verdict in ("slower", "inconclusive")
    assert slowed.verdict == "inconclusive" or slowed.remeasured
    assert (out / "head" / "2" / "cases.jsonl").exists()
    assert (out / "again-1").exists() or slowed.ratio is None


def rewrite(recording: Path, name: str, change: Callable[[str], str]) -> None:
    """Change a file of the recorded build, and make the recording one from before files had hashes."""
    archive = recording / BUILD
    with zipfile.ZipFile(archive) as old:
        files = {path: old.read(path) for path in old.namelist()}
    files[name] = change(files[name].decode()).encode()
    files["build.json"] = json.dumps(json.loads(files["build.json"]) | {"files": {}}).encode()
    for manifest in recording.glob("*/manifest.json"):
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"build": ""}))
    with zipfile.ZipFile(archive, "w") as new:
        for path, content in files.items():
            new.writestr(path, content)


@pytest.mark.slow
def test_base_is_the_recorded_build_and_its_recorded_cases(
    recording: Path, experiment: TimedExperiment, tmp_path: Path
) -> None:
    rewrite(recording, "chunkbench/baselines/chunk_attn.py", lambda _: "raise ImportError('another build')\n")
    other = experiment.model_copy(update={"implementations": ("naive", "chunk_attn"), "baseline": "naive"})
    comparison = gated(other, recording, Repeats(2, 0))
    verdicts = {case.implementation: case.verdict for case in comparison.cases}
    assert verdicts == {"naive": "new", "chunk_attn": "new", "paged_attn": "missing"}


@pytest.mark.parametrize(
    ("damage", "warning"),
    [
        (lambda archive: archive.unlink(), "it keeps no build"),
        pytest.param(
            lambda archive: archive.write_bytes(b"PK\x03\x04 torn"), "its build cannot be read", marks=pytest.mark.slow
        ),
        pytest.param(
            lambda archive: retagged(archive, python="cpython-27"),
            "its build is for python cpython-27, not",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_without_a_usable_build_the_recorded_times_are_the_base(
    recording: Path, experiment: TimedExperiment, tmp_path: Path, damage: Callable[[Path], object], warning: str
) -> None:
    damage(recording / BUILD)
    comparison = gated(experiment, recording, Repeats(2, 0))
    assert not comparison.settings.in_turns
    assert any(warning in text for text in comparison.warnings)


def retagged(archive: Path, **tag: str) -> None:
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("build.json", json.dumps(tag))


def test_a_build_of_another_protocol_is_refused(recording: Path, experiment: TimedExperiment, tmp_path: Path) -> None:
    with_protocol_1 = functools.partial(re.sub, r"(?m)^PROTOCOL = \d+$", "PROTOCOL = 1")
    rewrite(recording, "chunkbench/workers/protocol.py", with_protocol_1)
    with pytest.raises(RunError, match="the worker speaks protocol 1, this runner speaks"):
        gated(experiment, recording, Repeats(2, 1))


@pytest.mark.usefixtures("spec")
@pytest.mark.timeout(600)
def test_the_command_records_and_gates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    short = ("--processes", "2", "--budget", "100ms")
    done = chunkbench("gate", "tiny.yaml", "--record", "rec", *short)
    assert done.code == 0, done.stderr
    assert "recorded 6 processes in rec" in done.stderr
    assert (tmp_path / "rec" / "build.zip").stat().st_size < 2 << 20
    short = (*short, "--again", "0", "--format", "json")
    done = chunkbench("gate", "tiny.yaml", "--against", "rec", "--out", "out", *short)
    assert done.code in (0, 1), done.stderr
    assert json.loads(done.stdout)["exit_code"] == done.code
    assert (tmp_path / "out" / "comparison.xml").exists()
    repeated = chunkbench("gate", "tiny.yaml", "--against", "rec", "--out", "out")
    assert repeated.code == 2
    assert "is not empty" in repeated.stderr
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["settings"]["in_turns"]
    comparison = compare(open_runs(tmp_path / "rec"), open_runs(tmp_path / "out" / "head"), Options())
    assert comparison.settings.timed_cases == 2
    done = chunkbench("gate", "tiny.yaml", "--against", "rec", "--out", "old", "--as-recorded", *short)
    assert not json.loads(done.stdout)["settings"]["in_turns"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gate", "tiny.yaml"], "either --against RECORDED or --record RECORDED"),
        (["gate", "tiny.yaml", "--against", "nowhere"], "no such run directory"),
        (["gate", "tiny.yaml", "--against", ".", "--fail-on", "slow"], "'slow' is none of slower, incorrect"),
        (["gate", "tiny.yaml", "--against", ".", "--threshold", "five"], "write a share such as 5%"),
        (["gate", "missing.yaml", "--against", "."], "no such file"),
    ],
)
@pytest.mark.usefixtures("spec")
def test_messages_for_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = chunkbench(*words)
    assert done.code == 2
    assert message in done.stderr
