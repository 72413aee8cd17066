"""`chunkbench profile`: which point it takes, what it refuses, and whole profiles of tiny points."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from chunkbench.cli.main import cli
from chunkbench.kernels import cpu
from tests.command import Done, chunkbench

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
    return chunkbench("profile", *map(str, words))


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ([], ["6 points are left", "n_p=64 n_s=64", "n_p=32 n_s=0"]),
        (
            ["n_p=96"],
            [
                "2 points are left; choose one with --where AXIS=VALUE (dtype):",
                "n_p=96 n_s=48 batch_size=4 dtype=bfloat16",
            ],
        ),
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
        (["memory", "chunk_attn"], "memory is of `kind: memory`; only points of `kind: decode` can be profiled"),
        (["gpu-kernels", "chunk_attn"], "only a CPU can be profiled"),
        (["tabel3", "chunk_attn"], "did you mean table3?"),
        (["smoke", "chunk_atn"], "there is no chunk_atn; did you mean chunk_attn?"),
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


@pytest.mark.slow
def test_an_implementation_of_somebody_else(
    small: Path, tmp_path: Path, fakes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHUNKBENCH_FAKE_MENDED", "1")
    done = profile(small, "fake_mends", *ONE, "--rounds", 1, "--threads", 1, "--out", tmp_path, "--format", "json")
    assert done.code == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["case"]["status"] in ("ok", "noisy")
    assert data["case"]["n_c"] == 2  # the step in the middle of three
    assert len(data["case"]["samples_us"]) == len(data["warm_us"]) == len(data["watched"]) == 1
    assert data["one_thread_us"] == []
    assert not {"decode", "read", "compute"} & data.keys()
    (picture,) = tmp_path.glob("small-fake_mends-*.svg")
    assert done.stderr == f"\npicture: {picture}\n"


@pytest.mark.parametrize(
    ("implementation", "code", "told"),
    [
        ("fake_wrong", 3, "fake_wrong: incorrect: max_error"),
        pytest.param(
            *(
                "xformers",
                2,
                "xformers: unavailable: xformers has no CPU operator: run on an NVIDIA GPU (device: cuda)",
            ),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("fake_mends", 3, "fake_mends: error: in prepare: RuntimeError: out of order"), marks=pytest.mark.slow
        ),
        pytest.param(*("fake_dies", 3, "fake_dies: crashed: in check: the process was killed"), marks=pytest.mark.slow),
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


def test_help_names_every_option() -> None:
    text = CliRunner().invoke(cli, ["profile", "--help"]).output
    for option in ("--where", "--dtype", "--threads", "--rounds", "--out", "--format", "--quiet"):
        assert option in text
