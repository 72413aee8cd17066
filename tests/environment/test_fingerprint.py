"""The fingerprint: complete, plain JSON, and silent about whose machine it is."""

from __future__ import annotations

import copy
import getpass
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from chunkbench.environment import Environment, fingerprint, hardware_id, scrub


@pytest.fixture(scope="module")
def here() -> dict[str, Any]:
    return fingerprint()


def test_it_survives_json_and_validates(here: dict[str, Any]) -> None:
    again = json.loads(json.dumps(here))
    assert again == here
    assert Environment.model_validate(again).model_dump(mode="json") == here


def test_it_says_what_torch_says(here: dict[str, Any]) -> None:
    assert here["torch"]["version"] == torch.__version__
    assert here["torch"]["threads"] == torch.get_num_threads()
    assert here["cpu"]["cores"] >= 1
    assert here["memory_bytes"] > 2**28
    if here["torch"]["mkl"]:
        assert ("generic path" in here["torch"]["note"]) == (here["cpu"]["vendor"] != "GenuineIntel")


def test_it_names_neither_host_nor_user_nor_folder(here: dict[str, Any]) -> None:
    text = json.dumps(here)
    for name in {socket.gethostname(), getpass.getuser()}:
        assert not re.search(rf"\b{re.escape(name)}\b", text), name
    for folder in (os.path.expanduser("~"), os.getcwd(), sys.prefix):
        assert folder not in text


def test_a_kernel_release_with_the_host_in_it_is_scrubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "annas-box.example.org")
    monkeypatch.setattr("getpass.getuser", lambda: "anna")
    monkeypatch.setattr("platform.release", lambda: "6.1.0-Annas-Box+anna")
    assert fingerprint()["kernel"].endswith("6.1.0-<name>+<name>")


def test_scrub_takes_paths_and_leaves_ordinary_words(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_the_id_of_the_hardware_changes_with_it_alone(
    here: dict[str, Any], path: tuple[str, ...], value: object, same: bool
) -> None:
    other = copy.deepcopy(here)
    folder = other
    for name in path[:-1]:
        folder = folder[name]
    folder[path[-1]] = value
    assert (hardware_id(other) == hardware_id(here)) is same


def test_hardware_id_forgives_what_the_kernel_keeps_to_itself(here: dict[str, Any]) -> None:
    one, two = (here | {"memory_bytes": 24 * 2**30 + offset} for offset in (-(2**20), 2**20))
    assert hardware_id(one) == hardware_id(two)


def test_importing_the_room_does_not_import_torch(tmp_path: Path) -> None:
    code = "import sys, chunkbench.environment; sys.exit('torch' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=False).returncode == 0
