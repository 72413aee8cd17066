"""The tuning table, and the search that fills it. Functions of the tests take the place of a GPU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("triton", reason="triton is not installed")

from chunkbench.bench.measure.tune import Trial, Tuning, best, merges, search, tiles
from chunkbench.cli.tune import command
from chunkbench.kernels.triton import HEAD_DIMS
from chunkbench.kernels.triton import tuning as module
from chunkbench.kernels.triton.tuning import UnusableTable, read, tuning_for, write


def test_every_generation_has_every_head_dimension() -> None:
    table = read()
    assert {"sm_80", "sm_86", "sm_90", "sm_120"} <= set(table)
    assert all(set(rows) == set(HEAD_DIMS) for rows in table.values())


def test_a_newer_gpu_uses_the_nearest_older_row() -> None:
    table = read()
    assert tuning_for(90, 128) == table["sm_90"][128]
    assert tuning_for(89, 128) == table["sm_86"][128]
    assert tuning_for(100, 64) == table["sm_90"][64]
    with pytest.raises(UnusableTable, match=r"no row for compute capability 7\.5"):
        tuning_for(75, 128)


def test_an_invalid_table_error_names_its_path_and_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, text in enumerate(["{", "[]", json.dumps({"sm_90": {"128": {"tile": 32}}}), '{"sm_90": {"x": {}}}']):
        path = tmp_path / f"{number}.json"
        path.write_text(text)
        monkeypatch.setenv(module.VARIABLE, str(path))
        with pytest.raises(UnusableTable, match=rf"{number}\.json.*chunkbench tune"):
            tuning_for(90, 128)
    monkeypatch.setenv(module.VARIABLE, str(tmp_path / "missing.json"))
    with pytest.raises(UnusableTable, match=r"missing\.json"):
        tuning_for(90, 128)


def test_a_written_table_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    write(read(), path)
    assert read(path) == read()
    row = read()["sm_90"][128]._replace(tile=16)
    write({"sm_90": {128: row}}, path)
    assert read(path) == {"sm_90": {128: row}}


def test_the_search_takes_the_best_tiles_and_then_the_best_merge() -> None:
    announced: list[Trial] = []

    def fit(candidates: Sequence[Tuning]) -> list[Tuning | str]:
        fitted = [candidate._replace(blocks=3, narrow_blocks=5) for candidate in candidates]
        return ["spills registers" if candidate.narrow_tile == 128 else candidate for candidate in fitted]

    def measure(candidate: Tuning) -> tuple[float, ...] | str:
        if candidate.stages == 7:
            return "wrong: max_error 1.0"
        slow = (candidate.tile != 64) + (candidate.stages != 5) + (candidate.narrow_stages != 3)
        return (10.0 + slow, 20.0 + (candidate.fold != 4) + (candidate.merge_tile != 32) + (candidate.merge_warps != 1))

    tuning = search(fit, measure, announced.append)
    assert tuning == Tuning(64, 4, 64, 5, 64, 3, 3, 5, merge_tile=32, merge_warps=1, fold=4)
    assert len(announced) == len(tiles()) + len(merges(tuning))
    assert {trial.reason for trial in announced if not trial.times_us} == {"spills registers", "wrong: max_error 1.0"}


def test_without_a_usable_candidate_there_is_no_row() -> None:
    with pytest.raises(RuntimeError, match="no candidate"):
        best([Trial(tiles()[0], (), "spills registers")])


def test_without_a_gpu_the_command_says_so() -> None:
    ran = CliRunner().invoke(command, ["--head-dim", "128"])
    if ran.exit_code == 0:
        pytest.skip("there is a GPU here")
    assert ran.exit_code == 2
    assert "PyTorch sees no NVIDIA GPU here" in ran.output
