"""The fingerprint: complete, plain JSON, and without anything that identifies the owner."""

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

from chunkbench.bench.environment import Environment, fingerprint, hardware_id, scrub
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
