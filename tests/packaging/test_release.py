"""What `make release` refuses and writes; the whole of it is a slow test."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import chunkbench
from scripts import index_metadata, release
from tests.command import git

ROOT = Path(__file__).parents[2]
CHANGES = "# Changelog\n\n## 1.2.0 (2030-01-02)\n\n### Kernels\n\n- Faster.\n\n## 1.1.0 (2029-01-01)\n\n- Older.\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose last commit can be released as 1.2.0."""
    (tmp_path / "chunkbench").mkdir()
    (tmp_path / "chunkbench" / "version.py").write_text('__version__ = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    (tmp_path / ".gitignore").write_text("dist/\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_a_clean_commit_with_notes_and_without_a_tag_is_not_refused(repository: Path) -> None:
    git(repository, "tag", "v1.1.0")
    assert release.version_of(repository) == "1.2.0"
    assert release.refusals(repository, "1.2.0") == []


def test_every_reason_to_refuse_is_named_with_a_remedy(repository: Path) -> None:
    git(repository, "tag", "v1.2.0")
    (repository / "new.py").touch()
    (repository / "CHANGELOG.md").write_text(CHANGES.replace("1.2.0 (2030-01-02)", "1.2.0 (unreleased)"))
    (repository / "dist").mkdir()
    dirty, tagged, undated, kept = release.refusals(repository, "1.2.0")
    assert "CHANGELOG.md, new.py. Commit" in dirty
    assert "tag v1.2.0 exists. Raise the version" in tagged
    assert "'## 1.2.0 (unreleased)' needs the date" in undated
    assert "rm -r dist" in kept
    assert "no section '## 1.3.0 (YYYY-MM-DD)'" in release.refusals(repository, "1.3.0")[1]


def test_it_ends_before_it_builds_if_it_refuses(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / "new.py").touch()
    monkeypatch.setattr(release, "ROOT", repository)
    monkeypatch.setattr(sys, "argv", ["release.py"])
    with pytest.raises(SystemExit, match=r"^release: refused: the working tree differs .*new\.py"):
        release.main()
    assert not (repository / "build").exists()


def test_an_interrupted_or_failed_build_leaves_no_release(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(version: str, pythons: dict[str, str], folder: Path) -> Path:
        (folder / "out").mkdir()
        raise KeyboardInterrupt

    (repository / ".gitignore").write_text("dist/\nbuild/\n")
    git(repository, "commit", "-q", "-a", "-m", "second")
    monkeypatch.setattr(release, "ROOT", repository)
    monkeypatch.setattr(release, "build", interrupted)
    monkeypatch.setattr(release, "interpreters", lambda named: dict.fromkeys(release.PYTHONS, sys.executable))
    monkeypatch.setattr(sys, "argv", ["release.py"])
    with pytest.raises(SystemExit) as ended:
        release.main()
    assert ended.value.code == 130
    assert "nothing is left in dist/" in capsys.readouterr().err
    assert not (repository / "dist").exists()
    assert list((repository / "build").iterdir()) == []


def test_notes_are_the_section_of_the_version(repository: Path) -> None:
    assert release.notes(repository, "1.2.0") == ("(2030-01-02)", "### Kernels\n\n- Faster.")
    assert release.notes(repository, "1.1.0") == ("(2029-01-01)", "- Older.")
    assert release.notes(repository, "1.1") == ("", "")


def test_this_version_has_notes_and_citation_names_it() -> None:
    assert release.notes(ROOT, chunkbench.__version__)[1]
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {chunkbench.__version__}\n" in citation
    assert release.notes(ROOT, chunkbench.__version__)[0] == f"({re.search('date-released: (.*)', citation)[1]})"


def test_interpreters_are_asked_for_their_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    this = "{}.{}".format(*sys.version_info[:2])
    assert release.interpreters([]) == {this: sys.executable}
    other = tmp_path / "python"
    other.write_text(f"#!/bin/sh\necho cpython {this}\n")
    other.chmod(0o755)
    assert release.interpreters([str(other)])[this] == str(other)
    other.write_text("#!/bin/sh\necho cpython 3.9\n")
    with pytest.raises(SystemExit, match=r"cpython 3\.9; wheels are for CPython 3\.11, 3\.12, 3\.13"):
        release.interpreters([str(other)])
    with pytest.raises(SystemExit, match="no Python that runs"):
        release.interpreters([str(tmp_path / "missing")])


def test_checksums_are_those_that_sha256sum_reads(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("two")
    (tmp_path / "a").write_text("one")
    (tmp_path / "SHA256SUMS").write_text(release.checksums(tmp_path))
    done = subprocess.run(
        ["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "a: OK\nb: OK\n"


PAGE = (
    "![A plot](docs/a.svg)\n\n*What it shows.*\n\nSee [the docs](docs/b.md#c), [it](https://x.example) and `[1](2)`.\n"
)


def test_without_an_address_links_to_files_are_text_and_pictures_go() -> None:
    assert index_metadata.away_from_the_repository(PAGE, "", "1.0").startswith("See the docs, [it](https://x.example)")


def test_with_an_address_links_lead_to_the_tag() -> None:
    text = index_metadata.away_from_the_repository(PAGE, "https://host.example/us/chunkbench", "1.0")
    assert "![A plot](https://host.example/us/chunkbench/raw/v1.0/docs/a.svg)\n\n*What" in text
    assert "[the docs](https://host.example/us/chunkbench/blob/v1.0/docs/b.md#c), [it](https://x.example)" in text


def test_the_address_is_a_field_of_citation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_metadata, "ROOT", tmp_path)
    (tmp_path / "README.md").write_text("[a](b.md)\n")
    for line, address in (("", ""), ('repository-code: "https://host.example/us/it/"\n', "https://host.example/us/it")):
        (tmp_path / "CITATION.cff").write_text(f"title: X\n{line}license: Apache-2.0\n")
        assert index_metadata.repository() == address
        fields = index_metadata.dynamic_metadata({}, {"version": "1.0"})
        assert fields["readme"]["text"] == (f"[a]({address}/blob/v1.0/b.md)\n" if address else "a\n")
        assert fields["urls"].get("Repository", "") == address


def test_the_index_shows_no_link_that_only_a_checkout_has() -> None:
    fields = index_metadata.dynamic_metadata({}, {"version": chunkbench.__version__})
    targets = re.findall(r"\]\(([^)]+)\)", fields["readme"]["text"])
    assert targets
    assert [target for target in targets if "://" not in target] == []


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The release that a clone of the last commit makes, as if its version had no tag."""
    clone = tmp_path_factory.mktemp("release") / "clone"
    subprocess.run(["git", "clone", "--quiet", "--no-tags", ROOT, clone], check=True)
    done = subprocess.run(
        [sys.executable, clone / "scripts" / "release.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return clone / "dist"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_whole_release_works_without_a_compiler_and_a_checkout(dist: Path, tmp_path: Path) -> None:
    name, this = f"chunkbench-{chunkbench.__version__}", "cp{}{}".format(*sys.version_info[:2])
    names = {path.name for path in dist.iterdir()}
    assert {f"{name}.tar.gz", f"{name}-site.zip", f"{name}.cdx.json", f"{name}-notes.md", "SHA256SUMS"} <= names
    (wheel,) = dist.glob(f"{name}-{this}-{this}-*.whl")
    assert "manylinux" in wheel.name
    assert "index.html" in zipfile.ZipFile(dist / f"{name}-site.zip").namelist()
    assert '"torch"' in (dist / f"{name}.cdx.json").read_text()
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=dist, check=True)

    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([venv / "bin" / "python", "-m", "pip", "install", "-q", "--no-deps", wheel], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    environment = {"PATH": str(venv / "bin"), "HOME": str(tmp_path)}
    done = subprocess.run(
        ["chunkbench", "quick"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

    emulator = shutil.which("qemu-x86_64")
    if emulator is not None and os.uname().machine == "x86_64":
        folder = site / "chunkbench" / "kernels" / "cpu"
        code = f"import sys; sys.path.insert(0, {str(folder)!r}); import _native; print(_native.isas())"
        words = [emulator, "-cpu", "Nehalem", os.path.realpath(sys.executable), "-c", code]  # a CPU without AVX
        assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "['portable']\n"
