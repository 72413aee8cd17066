"""Commands with few options: claims, doctor, find-heads, profile, validate; and what shows progress."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import chunkbench.bench.environment
from chunkbench.bench.environment import Diagnosis
from chunkbench.cli.doctor import command as doctor_command
from chunkbench.cli.main import cli
from chunkbench.cli.progress import RepeatProgress, RunProgress
from chunkbench.cli.validate import command as validate_command
from chunkbench.kernels import cpu
from tests.command import Done
from tests.command import chunkbench as run_command
from tests.conftest import MISSING


def claims(*words: str) -> str:
    done = CliRunner().invoke(cli, ["claims", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_without_runs_only_claims_about_shapes_and_the_paper_are_judged(tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        judged = json.loads(claims("--format", "json"))
        text = claims()
        assert claims("--format", "markdown").startswith("# The paper's claims\n")
    keys = "id source basis read statement quantity unit verdict measured low high paper reason rows bound experiment"
    assert {" ".join(claim) for claim in judged} == {keys}
    assert judged[0]["verdict"] == "holds"
    assert "Of the paper's 20 timed claims 20 not measured." in text
    assert "chunkbench run table3" in text
    unknown = CliRunner().invoke(cli, ["claims", str(tmp_path / "nothing")])
    assert (unknown.exit_code, "no such run directory" in unknown.output) == (2, True)


FINDINGS = [
    Diagnosis(level="ok", title="torch", detail="2.13.0"),
    Diagnosis(level="warn", title="xformers", detail="missing", remedy="pip install 'chunkbench[xformers]'"),
    Diagnosis(level="error", title="results", detail="cannot be written", remedy="run --out DIR"),
]


def test_what_the_doctor_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning is no error, and -q hides what is fine."""
    findings = FINDINGS[:2]
    monkeypatch.setattr(chunkbench.bench.environment, "diagnose", lambda: findings)
    whole, quiet = (CliRunner().invoke(doctor_command, words) for words in ([], ["-q"]))
    assert (whole.exit_code, quiet.exit_code) == (0, 0)
    assert "2.13.0" in whole.output
    assert "pip install 'chunkbench[xformers]'" in " ".join(whole.output.split())
    assert ("torch" in quiet.output, "xformers" in quiet.output) == (False, True)
    findings = FINDINGS
    broken = CliRunner().invoke(doctor_command, ["--format", "json"])
    assert broken.exit_code == 2
    assert json.loads(broken.output) == [finding.model_dump() for finding in FINDINGS]


def run_of_find_heads(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["find-heads", *map(str, words)], catch_exceptions=False)
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "not a folder of a checkpoint"),
        (["small-llama"], "has random weights here"),
        (["small-llama", "--out", "heads.png"], "the picture is written beside them"),
        (["small-llama", "--out", "/nowhere/heads.json"], "cannot be written"),
    ],
)
def test_what_cannot_be_searched_is_refused_at_once(words: list[str], message: str) -> None:
    code, output = run_of_find_heads(*words)
    assert code == 2
    assert message in output


@pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} is not installed")
def test_a_checkpoint_is_searched(tmp_path: Path) -> None:
    from tests.server.engine.models import write_checkpoint

    folder = write_checkpoint("llama-grouped", tmp_path / "tiny")
    out = tmp_path / "heads.json"
    assert run_of_find_heads(folder, "--tokens", 5000, "--out", out)[0] == 2  # more than it has positions for
    code, output = run_of_find_heads(folder, "--tokens", 40, "--dtype", "float32", "--out", out)
    assert code == 0, output
    assert "tiny: 1 of 4 KV heads are retrieval heads (40 tokens, 4 times)" in output or "2 of 4 KV heads" in output
    assert len(json.loads(out.read_text())["echo"]) == 2
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def bad(tmp_path: Path) -> str:
    file = tmp_path / "bad.yaml"
    file.write_text("implementations: naive\nsed: 1\nsweep: [{n_p: 64, n_s: 65}]\n")
    return str(file)


def test_valid_files_have_one_line_each() -> None:
    result = CliRunner().invoke(validate_command, ["table3", "smoke"])
    assert result.exit_code == 0
    assert result.output.splitlines() == ["table3: valid, 12 points, 120 cases", "smoke: valid, 10 points, 300 cases"]
    assert CliRunner().invoke(validate_command, ["table3", "-q"]).output == ""


def test_every_problem_of_every_file_is_printed(bad: str) -> None:
    result = CliRunner().invoke(validate_command, [bad, "table3", "nowhere.yaml", "-q"])
    assert result.exit_code == 2
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert [line.removeprefix(bad)[:5] for line in lines[:3]] == [":1:1:", ":2:1:", ":3:24"]
    assert lines[3].startswith("nowhere.yaml: no such file")
    assert len(lines) == 4


def test_json_validate(bad: str) -> None:
    result = CliRunner().invoke(validate_command, ["--format", "json", "table3", bad])
    assert result.exit_code == 2
    good, wrong = json.loads(result.stdout)
    assert good == {"file": "table3", "valid": True, "points": 12, "cases": 120, "problems": []}
    assert wrong["valid"] is False
    assert wrong["problems"][1] == {
        "path": bad, "line": 2, "column": 1, "key": "sed", "message": "unknown key; did you mean seed?",
    }  # fmt: skip


def test_the_schema_comes_alone() -> None:
    result = CliRunner().invoke(validate_command, ["--schema"])
    assert result.exit_code == 0
    assert "sweep" in json.loads(result.output)["properties"]
    for arguments in ([], ["--schema", "table3"], ["--format", "xml", "table3"]):
        assert CliRunner().invoke(validate_command, arguments).exit_code == 2


@pytest.mark.parametrize("kind", [RunProgress, RepeatProgress])
def test_problems_are_told_also_when_progress_is_not(
    kind: type[RunProgress | RepeatProgress], capsys: pytest.CaptureFixture[str]
) -> None:
    progress = kind(quiet=True)
    progress.started(Path("somewhere/1"), 3, 0)
    progress.problem("a machine was lost")
    assert capsys.readouterr() == ("", "a machine was lost\n")


SPEC = """\
name: small
dtype: float32
implementations: [naive, chunk_attn]
case_limit: 20s
defaults: {n_c: 3, batch_size: 4, heads: 2, head_dim: 32, chunk_size: 16}
sweep:
  - {n_p: 64, n_s: [32, n_p]}
  - {n_p: 96, n_s: 0.5 n_p, dtype: [float32, bfloat16]}
  - {n_p: 32, n_s: 0, kv_heads: [1, 2]}
"""
ONE = ("--where", "n_p=64", "--where", "n_s=32")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SPEC)
    return path


def profile(*words: object) -> Done:
    return run_command("profile", *map(str, words))


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ([], ["6 points are left", "n_p=64 n_s=64", "n_p=32 n_s=0"]),
        (["n_p=96"], ["2 points are left; choose one with --where AXIS=VALUE (dtype):", "batch_size=4 dtype=bf"]),
        (["n_p=32", "n_s=0"], ["(kv_heads):", "n_p=32 n_s=0 batch_size=4 kv_heads=1\n", "batch_size=4 kv_heads=2"]),
        (["n_p=128"], ["no point of", "has this n_p; there are 64, 96, 32"]),
        (["n_p=64", "n_s=0"], ["has all of these values", "--dry-run"]),
        (["dtyp=float32"], ["--where dtyp=float32: dtyp: unknown axis; did you mean dtype?"]),
        (["dtype=bflot16"], ["--where dtype=bflot16: dtype:", "did you mean bfloat16?"]),
        (["n_p=many"], ["--where n_p=many: n_p: must be a whole number, not 'many'"]),
        (["load=90"], ["load: is only for `kind: serving`"]),
        (["n_p"], ["write AXIS=VALUE"]),
        (["n_p=[1"], ["--where n_p=[1"]),
    ],
)
def test_one_point_must_be_left(small: Path, where: list[str], told: list[str]) -> None:
    done = profile(small, "naive", *(word for text in where for word in ("--where", text)))
    assert done.code == 2
    for words in told:
        assert words in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["memory", "chunk_attn"],
            "memory is of `kind: memory`; only points of `kind: decode` and `kind: serving` can be profiled",
        ),
        (["gpu-kernels", "chunk_attn"], "only a CPU can be profiled"),
        (["tabel3", "chunk_attn"], "did you mean table3?"),
        (["smoke", "chunk_atn"], "there is no chunk_atn; did you mean chunk_attn?"),
        (["cpu-servers", "chunk_llama_radix", "--where", "n_s=0", "--format", "trace"], "choose one with --where"),
        (["table4", "chunk_llama", "--where", "n_s=0", "--where", "n_p=1024"], "no closed loop"),
        (["smoke", "naive", "--out", "why.txt"], "pictures end in .png, .svg, .pdf"),
    ],
)
def test_what_cannot_be_profiled_is_refused(words: list[str], told: str) -> None:
    done = profile(*words)
    assert done.code == 2
    assert told in " ".join(done.stderr.split())


@pytest.mark.skipif(cpu.native() is None, reason="the native module is missing")
def test_a_kernel_with_a_trace(small: Path, tmp_path: Path) -> None:
    """The experiment does not name it; a share of n_p and a list choose as in files."""
    picture = tmp_path / "pictures" / "why.png"
    where = ("--where", "n_p=64,128", "--where", "n_s=0.5 n_p", "--threads", "2")
    done = profile(small, "chunk_attn_no_tpp", *where, "--rounds", 1, "--out", picture)
    assert done.code == 0, done.stderr
    assert done.stdout.startswith("ChunkAttn, no TPP at n_p=64 n_s=32 b=4 threads=2, float32 (small)\n")
    for words in ("medians of 1 round,", "one thread", "reading alone", "private", "step 2;", "perf counters"):
        assert words in done.stdout
    assert done.stdout.endswith(f"\npicture: {picture}\n")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in picture.parent.iterdir()] == ["why.png"]


def test_what_is_given_twice_or_has_no_room_is_refused(small: Path, tmp_path: Path) -> None:
    twice = profile(small, "chunk_attn", "--where", "n_p=64", "--where", "n_p=64")
    assert (twice.code, "n_p is given twice: write n_p=V1,V2" in twice.stderr) == (2, True)
    folder = tmp_path / "here.png"
    folder.mkdir()
    full = profile(small, "chunk_attn", *ONE, "--out", folder)
    assert (full.code, "is a folder" in full.stderr) == (2, True)


@pytest.mark.parametrize(
    ("implementation", "code", "told"),
    [
        ("fake_wrong", 3, "fake_wrong: incorrect: max_error"),
        pytest.param("fake_dies", 3, "fake_dies: crashed: in check: the process was killed", marks=pytest.mark.slow),
    ],
)
def test_a_failure_has_its_reason_and_no_picture(
    implementation: str, code: int, told: str, small: Path, tmp_path: Path, fakes: None
) -> None:
    out = tmp_path / "out"
    done = profile(small, implementation, *ONE, "--rounds", 1, "--out", out)
    assert done.code == code
    assert f"chunkbench profile: {told}" in done.stderr
    assert not list(out.glob("*.svg"))
