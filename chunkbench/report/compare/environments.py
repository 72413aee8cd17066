"""Finds the differences between the environments of two runs. Some of them forbid to compare times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from chunkbench.bench.store import Manifest


class Difference(NamedTuple):
    what: str
    base: str
    head: str
    machine: bool
    """Whether the difference concerns the machine or the data, so that times must not be compared. False for a version
    of software."""
    hardware: bool = False
    """Whether the difference is normal between two machines, such as another CPU. Such a difference does not forbid a
    comparison between machines."""


_MACHINE = (
    ("CPU", "cpu.model"),
    ("CPU architecture", "cpu.architecture"),
    ("sockets", "cpu.sockets"),
    ("cores", "cpu.cores"),
    ("CPU threads", "cpu.threads"),
    ("usable CPUs", "cpu.usable_threads"),
    ("instruction sets", "cpu.isa"),
    ("frequency governor", "cpu.governor"),
    ("huge pages", "huge_pages"),
    ("PyTorch's threads", "torch.threads"),
)
"""Name of each fact about a machine's hardware or settings, with its path in the recorded facts."""
# The instruction set of the native module belongs to the code: the loss of a fast path is a regression.
_VERSIONS = (
    ("native instruction set", "native.isa"),
    ("Python", "python"),
    ("PyTorch", "torch.version"),
    ("CUDA of PyTorch", "torch.cuda"),
    ("MKL", "torch.mkl"),
    ("oneDNN", "torch.onednn"),
    ("NumPy", "numpy"),
    ("operating system", "os"),
    ("kernel", "kernel"),
)


def differences(base: Manifest, head: Manifest) -> list[Difference]:
    """All differences between two manifests. Differences of the machine come first."""
    return sorted(_differences(base, head), key=lambda difference: not difference.machine)


def _differences(base: Manifest, head: Manifest) -> Iterator[Difference]:
    for name in ("device", "dtype", "seed"):
        base_value, head_value = getattr(base, name), getattr(head, name)
        if base_value != head_value:
            yield Difference(name, str(base_value), str(head_value), machine=True)
    base_pages, head_pages = (manifest.experiment.pages for manifest in (base, head))
    if base_pages != head_pages:
        yield Difference("memory pages", _show(base_pages), _show(head_pages), machine=True)
    base_facts, head_facts = (_facts(manifest) for manifest in (base, head))
    for paths, machine in ((_MACHINE, True), (_VERSIONS, False)):
        for what, path in paths:
            base_value, head_value = _at(base_facts, path), _at(head_facts, path)
            if base_value != head_value:
                yield Difference(what, _show(base_value), _show(head_value), machine, hardware=machine)
    memory = [round((facts.get("memory_bytes") or 0) / 2**30) for facts in (base_facts, head_facts)]
    if memory[0] != memory[1]:
        yield Difference("memory", f"{memory[0]} GiB", f"{memory[1]} GiB", machine=True, hardware=True)
    sides = (base_facts, head_facts)
    gpus = [[(gpu["name"], gpu["compute_capability"]) for gpu in facts.get("gpus") or ()] for facts in sides]
    if gpus[0] != gpus[1]:
        names = [", ".join(name for name, _ in side) or "none" for side in gpus]
        yield Difference("GPUs", names[0], names[1], machine=True, hardware=True)
    for kind, none in (("packages", "not installed"), ("variables", "not set")):
        base_named, head_named = (facts.get(kind) or {} for facts in sides)
        for name in sorted({*base_named, *head_named}):
            base_value, head_value = (named.get(name) or none for named in (base_named, head_named))
            if base_value != head_value:
                yield Difference(name, base_value, head_value, machine=False)


def _facts(manifest: Manifest) -> Mapping[str, Any]:
    """The facts about the machine that measured a run; empty if several machines did."""
    machine = manifest.machines.get(manifest.only_machine)
    return {} if machine is None else machine.model_dump(mode="json")


def _at(values: Any, path: str) -> Any:
    for part in path.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def _show(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return "unknown" if value is None else str(value)
