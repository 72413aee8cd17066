"""In what the environments of two runs differ, and which differences forbid to compare their times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from chunkbench.store import Manifest


class Difference(NamedTuple):
    """One thing that is not the same."""

    what: str
    base: str
    head: str
    machine: bool
    """Whether it is no mere version of some software: it forbids to compare times as if they were one machine's."""
    hardware: bool = False
    """Whether another machine explains it."""


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
"""What a machine is and how it is set."""
# The instruction set of our own code is a property of that code: a path that was lost is a regression to be seen.
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
    """What differs between the manifests of two runs, what touches the machine first."""
    return sorted(_differences(base, head), key=lambda one: not one.machine)


def _differences(base: Manifest, head: Manifest) -> Iterator[Difference]:
    for name in ("device", "dtype", "seed"):
        one, other = getattr(base, name), getattr(head, name)
        if one != other:
            yield Difference(name, str(one), str(other), machine=True)
    ours, theirs = (_facts(manifest) for manifest in (base, head))
    for paths, machine in ((_MACHINE, True), (_VERSIONS, False)):
        for what, path in paths:
            one, other = _at(ours, path), _at(theirs, path)
            if one != other:
                yield Difference(what, _show(one), _show(other), machine, hardware=machine)
    memory = [round((values.get("memory_bytes") or 0) / 2**30) for values in (ours, theirs)]
    if memory[0] != memory[1]:
        yield Difference("memory", f"{memory[0]} GiB", f"{memory[1]} GiB", machine=True, hardware=True)
    gpus = [[(gpu["name"], gpu["compute_capability"]) for gpu in v.get("gpus") or ()] for v in (ours, theirs)]
    if gpus[0] != gpus[1]:
        named = [", ".join(name for name, _ in found) or "none" for found in gpus]
        yield Difference("GPUs", named[0], named[1], machine=True, hardware=True)
    packages = [values.get("packages") or {} for values in (ours, theirs)]
    for name in sorted({*packages[0], *packages[1]}):
        one, other = packages[0].get(name), packages[1].get(name)
        if one != other:
            yield Difference(name, one or "not installed", other or "not installed", machine=False)


def _facts(manifest: Manifest) -> Mapping[str, Any]:
    """What is known of the machine that a run was measured on; nothing where there are several."""
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
