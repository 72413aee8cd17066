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

from chunkbench.bench.environment import fingerprint, git_state, hardware_id, scrub
from chunkbench.bench.environment.doctor import check_machine
from chunkbench.bench.environment.machine import id_file, machine_id
from scripts import build_chunk_attn_authors
from tests.command import git


@pytest.fixture(scope="module")
def here() -> dict[str, Any]:
    return fingerprint()


def test_the_fingerprint_names_no_host_user_or_folder(here: dict[str, Any]) -> None:
    text = json.dumps(here)
    for name in {socket.gethostname(), getpass.getuser()}:
        assert not re.search(rf"\b{re.escape(name)}\b", text), name
    for folder in (os.path.expanduser("~"), os.getcwd(), sys.prefix):
        assert folder not in text


@pytest.mark.parametrize(
    ("home", "text", "scrubbed"),
    [
        ("/home/anna", "see /opt/lib/libx.so.1 or /home/anna/notes", "see <path> or <home>/notes"),
        ("/home/anna/", "/home/anna/x of /home/annette", "<home>/x of <path>"),
        ("/", "a/b and /x", "a/b and /x"),
        ("~", "~ and a/b", "~ and a/b"),
        ("~", "vmlinux on vm, vm.example.org", "vmlinux on <name>, <name>"),
        ("~", "6.1.0-VM+anna", "6.1.0-<name>+<name>"),
        ("~", "Debian GNU/Linux 12", "Debian GNU/Linux 12"),
    ],
)
def test_scrub_hides_names_and_paths_and_keeps_ordinary_words(
    home: str, text: str, scrubbed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "vm.example.org")
    for name, value in (("LOGNAME", "anna"), ("HOME", home)):
        monkeypatch.setenv(name, value)
    assert scrub(text) == scrubbed


@pytest.mark.parametrize(
    ("path", "value", "same"),
    [
        (("cpu", "model"), "another", False),
        (("cpu", "threads"), 999, False),
        (("memory_bytes",), 2**50, False),
        (("torch", "version"), "9.9.9", True),
        (("cpu", "governor"), "another", True),
        (("kernel",), "another", True),
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
    for name, value in (("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"), ("LD_PRELOAD", ""), ("UNRELATED", "1")):
        monkeypatch.setenv(name, value)
    variables = fingerprint()["variables"]
    assert variables["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    assert {"LD_PRELOAD", "UNRELATED"}.isdisjoint(variables)


HERE = {"cpu": {"model": "Invented", "cores": 2}, "memory_bytes": 2**34, "gpus": []}


@pytest.fixture(autouse=True)
def no_id_of_this_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CHUNKBENCH_MACHINE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_a_new_container_on_the_same_hardware_is_the_same_machine() -> None:
    assert machine_id(HERE).id == hardware_id(dict(HERE)) == machine_id({**HERE, "python": "another", "torch": {}}).id
    assert machine_id(HERE).id != machine_id({**HERE, "gpus": [{"name": "G", "compute_capability": "9.0"}]}).id
    assert "set CHUNKBENCH_MACHINE or write it to" in check_machine().detail


def test_a_host_can_store_an_id_and_the_variable_overrides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    file = id_file()
    assert file is not None
    file.parent.mkdir()
    for stored, variable, known in (
        (b"lab-3\n", "", "lab-3"),
        (b"lab-3\n", "lab-7", "lab-7"),
        (b"lab-3\n", " ", "lab-3"),
        (b"\xff\xfe", "", hardware_id(HERE)),
    ):
        file.write_bytes(stored)
        monkeypatch.setenv("CHUNKBENCH_MACHINE", variable)
        assert machine_id(HERE).id == known
        assert variable != "lab-7" or check_machine().detail.startswith("lab-7 (CHUNKBENCH_MACHINE)")


def test_a_user_without_a_home_has_no_stored_id(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("XDG_CONFIG_HOME", ""), ("HOME", "~")):
        monkeypatch.setenv(name, value)
    assert id_file() is None
    assert machine_id(HERE).id == hardware_id(HERE)
    assert check_machine().detail.endswith("to choose one, set CHUNKBENCH_MACHINE")


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
    (checkout / "site-packages").mkdir()
    assert git_state(checkout / "site-packages") is None  # the repository around it is another project


def test_without_a_repository_a_commit_or_git_there_is_no_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert git_state(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert git_state(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) is None
