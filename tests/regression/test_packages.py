"""Packages of other projects: found, copied, kept in a recording, refused where a comparison could not see a change."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from chunkbench.baselines.registry import REGISTRY
from chunkbench.experiment import TimedExperiment, load_experiment
from chunkbench.regression import build as builds
from chunkbench.regression import packages
from chunkbench.regression.build import (
    copy_build,
    digest_of,
    new_build_folder,
    pack,
    read_facts,
    unpacked_build,
    why_unusable,
)
from chunkbench.regression.compare import Options
from chunkbench.regression.job import Repeats
from chunkbench.regression.packages import Package, packages_of
from chunkbench.regression.recording import BUILD
from chunkbench.store import RunError, open_runs
from chunkbench.workers.heap import KEEP_FREED_MEMORY
from tests.example_project import EXAMPLE, install
from tests.regression.gates import gated, recorded
from tests.slowed_example import slower_by


def append_to_module(text: str) -> None:
    """Change the file of the installed example."""
    with open(importlib.util.find_spec("my_kernel").origin, "a") as file:  # type: ignore[union-attr,arg-type]
        file.write(text)


@pytest.fixture
def experiment() -> TimedExperiment:
    """The example's gate, with the fewest processes only."""
    loaded = load_experiment(EXAMPLE / "gate.yaml")
    assert isinstance(loaded, TimedExperiment)
    return loaded.model_copy(update={"budget_s": 1.0})


@pytest.fixture(params=[False, True], ids=["installed", "in place"])
def package(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    """The example project, in both ways."""
    project, site = tmp_path / "my-kernel", tmp_path / "site"
    shutil.copytree(EXAMPLE, project)
    (project / "data").mkdir()
    (project / ".git").mkdir()
    (project / ".git" / "index").write_text("not to be copied")
    install(project, site, in_place=request.param)
    monkeypatch.syspath_prepend(str(site))
    if request.param:
        monkeypatch.syspath_prepend(str(project / "src"))
    REGISTRY.refresh()
    yield only(packages_of(entry_points(site)))
    REGISTRY.refresh()
    sys.modules.pop("my_kernel", None)


def entry_points(site: Path) -> list[metadata.EntryPoint]:
    found = metadata.distributions(path=[str(site)])
    return [point for distribution in found for point in distribution.entry_points]


def only(found: list[Package]) -> Package:
    (package,) = found
    return package


@pytest.mark.parametrize("package", [pytest.param(False, marks=pytest.mark.slow), True], indirect=True)
def test_a_worker_runs_from_the_copy(package: Package, tmp_path: Path) -> None:
    build = copy_build(make(tmp_path / "build"), [package])
    script = tmp_path / "where.py"
    script.write_text(
        "from chunkbench.baselines.registry import REGISTRY\n"
        "import chunkbench, my_kernel\n"
        "print(chunkbench.__file__, my_kernel.__file__, REGISTRY.entry_point('my_kernel').dist.version)\n"
    )
    done = subprocess.run(build.command([str(script)]), capture_output=True, text=True, check=True, cwd=tmp_path)
    ours, theirs, version = done.stdout.split()
    folder = build.folder.resolve()
    assert Path(ours).is_relative_to(folder / "chunkbench")
    assert Path(theirs).is_relative_to(folder / "packages" / "my-kernel")
    assert version == "0.1"
    assert package.provides == ("my_kernel",)
    assert not any(".git" in inside.parts for _, inside in package.files)


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_an_archive_gives_the_build_back(package: Package, tmp_path: Path) -> None:
    build = copy_build(make(tmp_path / "build"), [package])
    archive = tmp_path / "build.zip"
    pack(build, archive)
    assert read_facts(archive) == build.facts
    assert why_unusable(build.facts) == ""
    with unpacked_build(archive, digest_of(archive)) as copy:
        assert copy.facts.provided == {"my_kernel"}
        for name in build.facts.files:
            assert (copy.folder / name).read_bytes() == (build.folder / name).read_bytes()


def test_a_package_that_is_too_large_is_refused(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "MAX_BYTES", 100)
    with pytest.raises(RunError, match=r"my-kernel: too large to be kept: .* most of it is"):
        packages._check_size(package.name, package.files)


def small_archive(path: Path, **files: str) -> Path:
    facts = {"python": "x", "system": "x", "machine": "x"}
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("build.json", json.dumps(facts))
        for name, text in files.items():
            file.writestr(name, text)
    return path


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "a\\x", "c:x"])
def test_an_entry_that_leads_out_of_the_archive_is_refused(tmp_path: Path, name: str) -> None:
    archive = small_archive(tmp_path / "a.zip", **{name: "x"})
    with pytest.raises(RunError, match="leads out of the archive"), unpacked_build(archive):
        pass
    assert not (tmp_path / "x").exists()


def test_an_archive_has_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = small_archive(tmp_path / "a.zip", x="1" * 2000, y="2")
    monkeypatch.setattr(builds, "MAX_BYTES", 1000)
    with pytest.raises(RunError, match="unpacks to more than"), unpacked_build(archive):
        pass
    monkeypatch.setattr(builds, "MAX_FILES", 2)
    with pytest.raises(RunError, match="holds 3 files, more than 2"), unpacked_build(archive):
        pass


def test_a_changed_file_is_found_by_its_hash(package: Package, tmp_path: Path) -> None:
    build = copy_build(make(tmp_path / "build"), [package])
    archive = tmp_path / "build.zip"
    pack(build, archive)
    digest = digest_of(archive)
    changed = next(name for name in build.facts.files if name.endswith("my_kernel.py"))
    (build.folder / changed).write_text("raise SystemExit\n")
    pack(build, archive)
    with pytest.raises(RunError, match="differs from its recorded hash"), unpacked_build(archive, digest):
        pass
    builds.seal_build(build.folder, build.facts.packages)
    pack(build, archive)
    with pytest.raises(RunError, match="another hash"), unpacked_build(archive, digest):
        pass


def test_compiled_code_needs_its_pytorch(package: Package, tmp_path: Path) -> None:
    facts = copy_build(make(tmp_path / "build"), [package]).facts
    native = facts.packages[0].model_copy(update={"native": True})
    other = facts.model_copy(update={"packages": (native,), "torch": "1.0"})
    assert "my-kernel in its build was compiled for PyTorch 1.0, not" in why_unusable(other)


IN_PLACE = pytest.mark.parametrize("package", [True], indirect=True, ids=["in place"])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("package", [False, pytest.param(True, marks=pytest.mark.slow)], indirect=True)
@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("as_recorded", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_gate_sees_that_somebody_elses_kernel_became_slow(
    tmp_path: Path, experiment: TimedExperiment, as_recorded: bool
) -> None:
    runs = recorded(experiment, tmp_path / "recording", processes=3)
    assert {case.status for run in runs for case in run.cases} <= {"ok", "noisy"}
    append_to_module(slower_by(19))
    comparison = gated(experiment, tmp_path / "recording", Repeats(3, 0), as_recorded=as_recorded)
    (case,) = [case for case in comparison.cases if case.metric == "latency"]
    assert (case.verdict, comparison.exit_code) == ("slower", 1), case
    assert case.ratio is not None
    assert case.ratio > 3
    assert comparison.settings.as_recorded is as_recorded
    if not as_recorded:
        source = next(source for source in comparison.sources if source.package == "my-kernel")
        assert not source.same
        assert source.base != source.head


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("package")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "verdicts"),
    [(0.05, {"slower", "inconclusive"}), (0.2, {"slower", "inconclusive"}), (19.0, {"slower"})],
    ids=["5%", "20%", "20 times"],
)
def test_the_gates_of_a_slowed_example(tmp_path: Path, share: float, verdicts: set[str]) -> None:
    """As a user runs them. docs/regression.md counts how often each verdict came."""
    experiment = load_experiment(EXAMPLE / "gate.yaml")
    assert isinstance(experiment, TimedExperiment)
    recorded(experiment, tmp_path / "recording")
    append_to_module(slower_by(share))
    comparison = gated(experiment, tmp_path / "recording", Repeats(12, 3), options=Options(looks=4))
    (case,) = [case for case in comparison.cases if case.metric == "latency"]
    assert case.verdict in verdicts, case


@IN_PLACE
@pytest.mark.usefixtures("package")
def test_runs_of_a_changed_package_are_not_added_to_a_recording(tmp_path: Path, experiment: TimedExperiment) -> None:
    for first in (1, 2):  # unchanged, it is added to
        recorded(experiment, tmp_path / "recording", first=first)
    append_to_module("# changed\n")
    with pytest.raises(RunError, match="files of my-kernel are no longer those"):
        recorded(experiment, tmp_path / "recording", first=3)
    assert [run.path.name for run in open_runs(tmp_path / "recording")] == ["1", "2"]


def test_processes_of_equal_builds_get_arguments_of_equal_length(package: Package, tmp_path: Path) -> None:
    pack(copy_build(make(tmp_path / "recorded"), [package]), tmp_path / BUILD)
    with new_build_folder() as folder, unpacked_build(tmp_path / BUILD) as base:
        head = copy_build(folder, [package])
        assert list(map(len, base.command())) == list(map(len, head.command()))
        assert base.folder != head.folder


def test_where_objects_begin_is_drawn_for_each_process(tmp_path: Path) -> None:
    build = copy_build(make(tmp_path / "build"), [])
    script = tmp_path / "where.py"
    # The first large blocks may fill holes that the interpreter's start left, which are always at the same place.
    script.write_text("large = [bytes(2000) for _ in range(500)]\nprint(id(object()) % 4096, id(large[-1]) % 4096)\n")
    command = build.command([str(script)])
    environment = os.environ | KEEP_FREED_MEMORY  # a worker's: else a large block is no part of the heap
    places = [subprocess.run(command, capture_output=True, check=True, env=environment).stdout for _ in range(4)]
    small, large = zip(*(place.split() for place in places), strict=True)
    assert len(set(small)) > 1
    assert len(set(large)) > 1


@IN_PLACE
@pytest.mark.usefixtures("package")
def test_a_recording_without_a_copy_of_the_package_is_refused(tmp_path: Path, experiment: TimedExperiment) -> None:
    path = tmp_path / "recording"
    (run,) = recorded(experiment, path)
    pack(copy_build(make(tmp_path / "without"), []), path / BUILD)  # as older versions made it
    run.manifest = run.manifest.model_copy(update={"build": ""})
    with pytest.raises(RunError, match="keeps no copy of my-kernel, which provides my_kernel"):
        gated(experiment, path, Repeats(2, 0), [run])
