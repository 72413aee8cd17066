"""A run directory: appended, read, resumed, damaged, and the newest of several."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from chunkbench.bench.store import DecodeResult, RunWriter, latest_run, newest_runs, open_run
from chunkbench.run_error import RunError
from tests.invented_runs import facts_of

MANIFEST = {"experiment": {"name": "x"}}


def case(key: str) -> DecodeResult:
    return facts_of("naive", key=key, samples_us=((1.5,),), steps=(1,))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    writer = RunWriter.create(tmp_path / "run", MANIFEST)
    writer.append([case("a"), case("b")])
    writer.append([case("c")])
    writer.close()
    return tmp_path / "run"


def test_appended_cases_are_read_back(run: Path) -> None:
    assert [recorded.key for recorded in open_run(run).cases] == ["a", "b", "c"]
    assert open_run(run / "cases.jsonl").cases[0].samples_us == ((1.5,),)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["", "byte order mark"])
@pytest.mark.parametrize("missing", [20, 1])
def test_an_incomplete_last_line_is_left_out_and_removed_on_resume(run: Path, missing: int, mark: bytes) -> None:
    path = run / "cases.jsonl"
    path.write_bytes(mark + path.read_bytes()[:-missing])
    (run / "manifest.json").write_bytes(mark + (run / "manifest.json").read_bytes())
    assert open_run(run).torn
    assert [recorded.key for recorded in open_run(run).cases] == ["a", "b"]
    writer = RunWriter.resume(run)
    writer.append([case("d")])
    writer.close()
    assert [recorded.key for recorded in open_run(run).cases] == ["a", "b", "d"]


def test_zeros_in_place_of_the_last_line_are_left_out(run: Path) -> None:
    with (run / "cases.jsonl").open("ab") as file:
        file.write(bytes(40) + b"\n")
    assert open_run(run).torn
    assert len(open_run(run).cases) == 3


@pytest.mark.parametrize(
    ("before", "after", "place"),
    [('"key":"c"', '"key":7', "3: damaged: key"), ('{"key":"b"', '{} {"key":"b"', "2: damaged")],
)
def test_a_whole_line_that_cannot_be_read_is_kept_and_named(run: Path, before: str, after: str, place: str) -> None:
    damaged = (run / "cases.jsonl").read_text().replace(before, after)
    (run / "cases.jsonl").write_text(damaged)
    for read in (open_run, RunWriter.resume):
        with pytest.raises(RunError, match=rf"cases\.jsonl:{place}"):
            read(run)
    assert (run / "cases.jsonl").read_text() == damaged


def test_a_second_writer_is_refused_while_the_first_one_writes(run: Path) -> None:
    writer = RunWriter.resume(run)
    with pytest.raises(RunError, match="another chunkbench process is writing"):
        RunWriter.resume(run)
    writer.close()
    RunWriter.resume(run).close()


def test_a_new_run_has_its_manifest_before_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else readers find rows of nothing while the disk is busy."""
    touch = Path.touch
    monkeypatch.setattr(Path, "touch", lambda path: (path.parent / "manifest.json").stat() and touch(path))
    RunWriter.create(tmp_path / "run", MANIFEST).close()
    assert (tmp_path / "run" / "cases.jsonl").exists()


def test_a_new_run_does_not_overwrite_an_old_one(run: Path) -> None:
    with pytest.raises(RunError, match="resume it"):
        RunWriter.create(run, MANIFEST)
    assert len(open_run(run).cases) == 3


def test_a_directory_with_other_files_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunError, match="holds other files but no run"):
        RunWriter.create(tmp_path, MANIFEST)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_broken_run_does_not_hide_the_latest_run_of_an_experiment(run: Path) -> None:
    for number, text in enumerate(["{", "[1]", '{"schema_version": 1}']):
        (run.parent / f"broken{number}").mkdir()
        (run.parent / f"broken{number}" / "manifest.json").write_text(text)
    assert latest_run(run.parent, "x") == run


def test_a_case_that_is_measured_again_replaces_the_old_one(run: Path) -> None:
    writer = RunWriter.resume(run)
    again = case("b").model_copy(update={"samples_us": ((2.5,),)})
    writer.append([again, case("d")])
    assert writer.cases == open_run(run).cases
    writer.close()
    assert [(recorded.key, recorded.samples_us[0][0]) for recorded in open_run(run).cases] == [
        ("a", 1.5), ("c", 1.5), ("b", 2.5), ("d", 1.5),
    ]  # fmt: skip


def test_a_full_disk_is_an_error_that_names_the_file(run: Path) -> None:
    """Like a full disk, /dev/full takes no byte."""
    writer = RunWriter.resume(run)
    (run / "cases.jsonl").unlink()
    (run / "cases.jsonl").symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"cases\.jsonl: cannot be written: No space left"):
        writer.append([case("d")])
    (run / "manifest.tmp").symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"manifest\.json: cannot be written: No space left"):
        writer.update_manifest(interrupted=True)
    writer.close()


def test_a_new_file_reaches_the_disk_before_its_name(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: folders.append(stat.S_ISDIR(os.fstat(descriptor).st_mode)))
    writer = RunWriter.resume(run)
    writer.update_manifest(interrupted=True)
    writer.close()
    assert folders == [False, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "run"),
        ("{", "run"),
        ("[1]", "run"),
        (json.dumps({"schema_version": 99}), "schema version 99"),
        (json.dumps({**MANIFEST, "schema_version": True}), "manifest.json: has schema version True"),
        (json.dumps({"schema_version": 10, "styles": {"a\n::error::b": 5}}), "styles"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_an_error_of_one_line(run: Path, text: str, message: str) -> None:
    (run / "manifest.json").write_text(text)
    with pytest.raises(RunError) as error:
        open_run(run)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_run_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no such run directory"):
        open_run(tmp_path / "nowhere")
    with pytest.raises(RunError, match="not a run directory"):
        open_run(tmp_path)
    with pytest.raises(RunError, match="no run"):
        latest_run(tmp_path)


def test_a_copy_of_an_old_run_is_not_the_latest(run: Path) -> None:
    for name, started in (
        ("new", "2026-11-02T00:00:00Z"),
        ("copy of an old one", "2026-01-01T00:00:00Z"),
        ("no", None),
        ("odd", "zzz"),
    ):
        RunWriter.create(run.parent / name, {**MANIFEST, "started_at": started}).close()
    assert latest_run(run.parent, "x").name == "new"
    assert [path.name for path in newest_runs(run.parent)] == ["new"]
