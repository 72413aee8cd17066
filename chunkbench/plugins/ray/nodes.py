"""The nodes of a cluster: decides which nodes can measure, which kind of machine each is, and which kinds a run
uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from chunkbench.bench.environment import Environment
from chunkbench.run_error import RunError

Machines = Literal["any", "each"]
_ACCELERATOR = "accelerator_type:"


@dataclass(frozen=True)
class Resources:
    """Ray's facts about a node."""

    id: str
    address: str
    cpus: int
    gpus: int = 0
    memory: float = 0.0
    accelerators: tuple[str, ...] = ()
    """Ray's names of the kinds of accelerators."""

    @classmethod
    def of(cls, node: Mapping[str, Any]) -> Resources:
        """The resources in an entry of `ray.nodes()`."""
        amounts = node["Resources"]
        return cls(
            node["NodeID"],
            f"{node['NodeManagerAddress']} ({node['NodeID'][:6]})",
            int(amounts.get("CPU", 0)),
            int(amounts.get("GPU", 0)),
            float(amounts.get("memory", 0.0)),
            tuple(sorted(name.removeprefix(_ACCELERATOR) for name in amounts if name.startswith(_ACCELERATOR))),
        )


@dataclass(frozen=True)
class Node:
    """A node that can measure."""

    resources: Resources
    machine: str
    environment: Environment

    @property
    def kind(self) -> str:
        """The kind of machine as text: accelerators, processor, cores."""
        gpus = dict.fromkeys(gpu.name for gpu in self.environment.gpus)
        cpu = self.environment.cpu
        parts = [*(gpus or self.resources.accelerators), cpu.name, f"{cpu.cores} cores"]
        return ", ".join(part for part in parts if part)

    @property
    def name(self) -> str:
        """The name of the node in messages."""
        return f"{self.machine} at {self.resources.address}"

    def matches(self, wanted: str) -> bool:
        """Whether the text `wanted` occurs in the kind or the id of this machine, or in Ray's name of an
        accelerator."""
        texts = (self.kind, self.machine, *self.resources.accelerators)
        return any(wanted.casefold() in text.casefold() for text in texts)


@dataclass(frozen=True)
class Software:
    """The software that every node must have in common with the driver."""

    python: str
    chunkbench: str
    revision: str
    torch: str
    native: bool


def problem_of(answer: Mapping[str, Any], here: Software) -> str:
    """Why a node that answered a probe cannot measure; empty if it can."""
    if answer["problem"]:
        return str(answer["problem"])
    if answer["python"] != here.python:
        return f"it has Python {answer['python']}, this machine {here.python}"
    if answer["revision"] != here.revision:
        return f"its ChunkBench is another revision ({answer['chunkbench']}; here {here.chunkbench})"
    environment = answer["environment"]
    torch = environment["torch"]["version"].partition("+")[0]
    if torch != here.torch:
        return f"it has PyTorch {torch}, this machine {here.torch}"
    if here.native and not environment["native"]["built"]:
        return "its ChunkBench has no native module, this machine's has (`chunkbench doctor` there says why)"
    return ""


def node_of(resources: Resources, answer: Mapping[str, Any]) -> Node:
    """Make the node from a probe that found no problem."""
    return Node(resources, answer["machine"], Environment.model_validate(answer["environment"]))


def choose_kinds(nodes: Sequence[Node], machines: Machines | None, wanted: str | None) -> list[str]:
    """The kinds of machines that a run uses. Only machines that match `wanted` count.

    `each`: all kinds. `any` or None: the kind with the most machines. Raises `RunError` if no machine is left. Without
    `each`, also raises it if `wanted` matches several kinds.
    """
    matching = [node for node in nodes if wanted is None or node.matches(wanted)]
    if not matching:
        kinds = "; ".join(dict.fromkeys(f"{node.kind} ({node.machine})" for node in nodes)) or "none that can measure"
        raise RunError(f"the cluster has no machine like {wanted!r}. It has: {kinds}")
    counts = Counter(node.kind for node in matching)
    if machines == "each":
        return sorted(counts)
    if wanted is not None and len(counts) > 1:
        raise RunError(f"{wanted!r} matches several kinds of machines; name one of them: {'; '.join(sorted(counts))}")
    return [min(counts, key=lambda kind: (-counts[kind], kind))]


def same_ids(nodes: Sequence[Node]) -> list[str]:
    """A warning for every machine id that several nodes have."""
    by_id: dict[str, list[Node]] = {}
    for node in nodes:
        by_id.setdefault(node.machine, []).append(node)
    return [
        f"{' and '.join(node.resources.address for node in several)} have the same machine id {id}, so reports take "
        "them for one machine. CHUNKBENCH_MACHINE, or the file that `chunkbench doctor` names, gives a machine its id"
        for id, several in by_id.items()
        if len(several) > 1
    ]
