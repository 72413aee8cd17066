"""Finds the id of this machine, which results record and comparisons need."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

VARIABLE = "CHUNKBENCH_MACHINE"
_HARDWARE = ("model", "architecture", "sockets", "cores", "threads", "isa")
_LONGEST = 64


class MachineId(NamedTuple):
    """The id of a machine, and a text that says where the id comes from."""

    id: str
    source: str


def machine_id(environment: Mapping[str, Any]) -> MachineId:
    """The id of this machine: `CHUNKBENCH_MACHINE`, else the content of `id_file`, else the id of the hardware.

    `environment` is the result of `fingerprint`. The variable and the file let all containers of one host have the same
    id.
    """
    if chosen := os.environ.get(VARIABLE, "").strip()[:_LONGEST]:
        return MachineId(chosen, VARIABLE)
    if stored := _stored():
        return MachineId(stored, "stored on this host")
    return MachineId(hardware_id(environment), "from the hardware")


def id_file() -> Path | None:
    """The file in which a user can store an id for this machine; None if the user has no home folder."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return None if folder.startswith("~") else Path(folder) / "chunkbench" / "machine"


def hardware_id(environment: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits that depend only on the hardware.

    `environment` is the result of `fingerprint`, or a machine of a manifest. Things that a user sets or updates
    (governor, kernel, Python, PyTorch) do not change the id.
    """
    cpu = environment.get("cpu") or {}
    # Round to GiB, because the kernel reserves a varying part of the memory.
    gibibytes = round((environment.get("memory_bytes") or 0) / 2**30)
    gpus = [[gpu.get("name"), gpu.get("compute_capability")] for gpu in environment.get("gpus") or ()]
    text = json.dumps([{name: cpu.get(name) for name in _HARDWARE}, gibibytes, gpus], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _stored() -> str:
    file = id_file()
    if file is None:
        return ""
    try:
        return file.read_text(encoding="utf-8").strip()[:_LONGEST]
    except (OSError, ValueError):
        return ""
