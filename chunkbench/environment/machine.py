"""Which machine this is: the id under which facts, and comparisons of them, know it."""

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
    """An id, and where it comes from in words."""

    id: str
    source: str


def machine_id(environment: Mapping[str, Any]) -> MachineId:
    """The id of this machine: `CHUNKBENCH_MACHINE`, else what `id_file` holds, else the id of its hardware.

    So containers of one host can be told that they are one machine, and a fresh container is no new machine.
    `environment` is what `fingerprint` gives.
    """
    if chosen := os.environ.get(VARIABLE, "").strip()[:_LONGEST]:
        return MachineId(chosen, VARIABLE)
    if kept := _kept():
        return MachineId(kept, "kept on this host")
    return MachineId(hardware_id(environment), "from the hardware")


def id_file() -> Path:
    """Where a host may keep an id of its own: one line of text."""
    folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "chunkbench" / "machine"


def hardware_id(environment: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits that follow from the hardware alone.

    `environment` is what `fingerprint` gave, also read back from a manifest. What a user sets or updates (governor,
    kernel, Python, PyTorch) does not count.
    """
    cpu = environment.get("cpu") or {}
    # The kernel keeps a varying part of the memory to itself.
    gibibytes = round((environment.get("memory_bytes") or 0) / 2**30)
    gpus = [[gpu.get("name"), gpu.get("compute_capability")] for gpu in environment.get("gpus") or ()]
    text = json.dumps([{name: cpu.get(name) for name in _HARDWARE}, gibibytes, gpus], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _kept() -> str:
    try:
        return id_file().read_text(encoding="utf-8").strip()[:_LONGEST]
    except (OSError, ValueError):
        return ""
