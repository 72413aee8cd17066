"""What is known of a machine: fingerprint, id, revision."""

from __future__ import annotations

import copy
import getpass
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from chunkbench.bench.environment import Environment, fingerprint, git_state, hardware_id, scrub
from chunkbench.bench.environment.doctor import check_machine
from chunkbench.bench.environment.machine import id_file, machine_id
from scripts import build_chunk_attn_authors


@pytest.fixture(scope="module")
def here() -> dict[str, Any]:
    return fingerprint()


def test_the_fingerprint_survives_json_and_validates(here: dict[str, Any]) -> None:
    reread = json.loads(json.dumps(here))
    assert reread == here
    assert Environment.model_validate(reread).model_dump(mode="json") == here


def test_the_fingerprint_agrees_with_torch(here: dict[str, Any]) -> None:
    assert here["torch"]["version"] == torch.__version__
    assert here["torch"]["threads"] == torch.get_num_threads()
    assert here["cpu"]["cores"] >= 1
    assert here["memory_bytes"] > 2**28
    if here["torch"]["mkl"]:
        assert ("generic path" in here["torch"]["note"]) == (here["cpu"]["vendor"] != "GenuineIntel")


def test_the_fingerprint_names_no_host_user_or_folder(here: dict[str, Any]) -> None:
    text = json.dumps(here)
    for name in {socket.gethostname(), getpass.getuser()}:
        assert not re.search(rf"\b{re.escape(name)}\b", text), name
    for folder in (os.path.expanduser("~"), os.getcwd(), sys.prefix):
        assert folder not in text


def test_host_and_user_in_the_kernel_release_are_scrubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "annas-box.example.org")
    monkeypatch.setattr("getpass.getuser", lambda: "anna")
    monkeypatch.setattr("platform.release", lambda: "6.1.0-Annas-Box+anna")
    assert fingerprint()["kernel"].endswith("6.1.0-<name>+<name>")


def test_scrub_replaces_paths_and_keeps_ordinary_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "vm")
    monkeypatch.setenv("HOME", "/home/anna")
    assert scrub("cannot open /opt/lib/libx.so.1 for vmlinux on vm, see /home/anna/notes") == (
        "cannot open <path> for vmlinux on <name>, see <home>/notes"
    )
    assert scrub("Debian GNU/Linux 12") == "Debian GNU/Linux 12"


@pytest.mark.parametrize(
    ("path", "value", "same"),
    [
        (("cpu", "model"), "another", False),
        (("cpu", "threads"), 999, False),
        (("torch", "version"), "9.9.9", True),
        (("memory_bytes",), 2**50, False),
        (("cpu", "governor"), "another", True),
        (("kernel",), "another", True),
        (("python",), "another", True),
        (("packages",), {"xformers": "1"}, True),
    ],
)
def test_the_hardware_id_changes_only_with_the_hardware(
    here: dict[str, Any], path: tuple[str, ...], value: object, same: bool
) -> None:
    other = copy.deepcopy(here)
    folder = other
    for name in path[:-1]:
        folder = folder[name]
    folder[path[-1]] = value
    assert (hardware_id(other) == hardware_id(here)) is same


def test_small_differences_in_memory_size_do_not_change_the_hardware_id(here: dict[str, Any]) -> None:
    less, more = (here | {"memory_bytes": 24 * 2**30 + offset} for offset in (-(2**20), 2**20))
    assert hardware_id(less) == hardware_id(more)


def test_importing_chunkbench_environment_does_not_import_torch(tmp_path: Path) -> None:
    code = "import sys, chunkbench.bench.environment; sys.exit('torch' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=False).returncode == 0


@pytest.mark.skipif(shutil.which("gcc") is None or not torch.backends.mkl.is_available(), reason="needs gcc and MKL")
def test_a_preloaded_library_that_turns_mkl_to_intels_path_is_noted(tmp_path: Path) -> None:
    library = tmp_path / build_chunk_attn_authors.ANY_CPU
    build_chunk_attn_authors.build_any_cpu(library, tmp_path)
    program = "from chunkbench.bench.environment.software import read_torch; print(read_torch('AuthenticAMD').note)"
    notes = [
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, **extra}, capture_output=True, text=True, check=True
        ).stdout
        for extra in ({}, {"LD_PRELOAD": str(library)})
    ]
    assert "generic path" in notes[0]
    assert "treat this CPU as Intel's" in notes[1]


def test_variables_that_change_speed_are_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("UNRELATED", "1")
    assert fingerprint()["variables"]["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    assert {"LD_PRELOAD", "UNRELATED"}.isdisjoint(fingerprint()["variables"])


@pytest.mark.parametrize(
    ("home", "text", "scrubbed"),
    [
        ("/", "a/b and /x", "a/b and /x"),
        ("/home/ann/", "/home/ann/x of /home/annette", "<home>/x of <path>"),
        ("~", "~ and a/b", "~ and a/b"),
    ],
)
def test_scrub_knows_the_home_folder(home: str, text: str, scrubbed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.expanduser", lambda path: home)
    assert scrub(text) == scrubbed


HERE = {"cpu": {"model": "Invented", "cores": 2}, "memory_bytes": 2**34, "gpus": []}


@pytest.fixture(autouse=True)
def no_id_of_this_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CHUNKBENCH_MACHINE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_a_new_container_on_the_same_hardware_is_the_same_machine() -> None:
    assert machine_id(HERE).id == hardware_id(dict(HERE)) == machine_id({**HERE, "python": "another", "torch": {}}).id
    assert machine_id(HERE).id != machine_id({**HERE, "gpus": [{"name": "G", "compute_capability": "9.0"}]}).id


def test_a_host_can_store_an_id_and_the_variable_overrides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    id_file().parent.mkdir()
    id_file().write_text("lab-3\n")
    assert machine_id(HERE).id == "lab-3"
    monkeypatch.setenv("CHUNKBENCH_MACHINE", "lab-7")
    assert machine_id(HERE).id == "lab-7"
    monkeypatch.setenv("CHUNKBENCH_MACHINE", " ")
    assert machine_id(HERE).id == "lab-3"


def test_an_unreadable_stored_id_is_ignored() -> None:
    id_file().parent.mkdir()
    id_file().write_bytes(b"\xff\xfe")
    assert machine_id(HERE).id == hardware_id(HERE)


def test_doctor_shows_the_id_and_how_to_choose_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHUNKBENCH_MACHINE", "lab-7")
    finding = check_machine()
    assert finding.detail.startswith("lab-7 (CHUNKBENCH_MACHINE)")
    monkeypatch.delenv("CHUNKBENCH_MACHINE")
    assert "from the hardware" in check_machine().detail
    assert "set CHUNKBENCH_MACHINE or write it to" in check_machine().detail


def test_a_user_without_a_home_has_no_stored_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # what Python does without HOME and without a name
    assert id_file() is None
    assert machine_id(HERE).id == hardware_id(HERE)
    assert check_machine().detail.endswith("to choose one, set CHUNKBENCH_MACHINE")


def git(path: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(path), *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text("ignored\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_untracked_files_make_a_checkout_dirty_and_ignored_files_do_not(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    (checkout / "ignored").write_text("")
    assert git_state(checkout) == {"commit": commit, "dirty": False}
    (checkout / "new.py").write_text("")
    assert git_state(checkout) == {"commit": commit, "dirty": True}


def test_a_folder_inside_another_repository_has_no_revision(checkout: Path) -> None:
    (checkout / "site-packages").mkdir()
    assert git_state(checkout / "site-packages") is None


def test_without_a_repository_a_commit_or_git_there_is_no_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert git_state(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert git_state(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) is None
