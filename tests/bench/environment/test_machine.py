"""The id of a machine: the user's choice, else the id that the host stores, else the id of its hardware."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkbench.bench.environment.doctor import check_machine
from chunkbench.bench.environment.machine import hardware_id, id_file, machine_id

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
