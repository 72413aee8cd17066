"""The machines of a run and the actors on them. A lane is a share of a node that measures one pass at a time."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from time import monotonic
from typing import Any

from chunkbench.bench.environment.revision import copy_package
from chunkbench.bench.experiment.terms import Device
from chunkbench.bench.runner.passes import Budget, Pass
from chunkbench.plugins.ray import remote
from chunkbench.plugins.ray.connection import Cluster
from chunkbench.plugins.ray.nodes import Machines, Node, Resources, choose_kinds

_HEARTBEAT_S = 2.0
"""Seconds between two polls of a node: short enough for a progress bar, long enough not to disturb a measurement."""


@dataclass(frozen=True)
class Share:
    """The share of a node that a lane uses, as amounts of Ray's resources."""

    cpus: int
    gpus: int
    memory: int

    @classmethod
    def of(cls, node: Resources, device: Device, alone: bool) -> list[Share]:
        """The shares of a node: one share that is the whole node, or one share for each GPU if `alone` is false."""
        count = 1
        if device == "cuda" and not alone:
            count = max(1, min(node.gpus, node.cpus))
        gpus = 0 if device == "cpu" else node.gpus // count
        return [cls(node.cpus // count, gpus, int(node.memory / count)) for _ in range(count)]


class Lane:
    """An actor on its share of a node, with its current work and the time of its last answer."""

    def __init__(self, cluster: Cluster, node: Node, share: Share) -> None:
        self.node, self.share = node, share
        self._ray = cluster.ray
        amounts = {"num_cpus": share.cpus, "num_gpus": share.gpus, "memory": share.memory}
        wanted = {name: amount for name, amount in amounts.items() if amount}
        self.actor = cluster.start_actor(remote.Measurer, node.resources, **wanted)
        self.call: Any = None
        """The call of `begin` or `measure` that has not been answered yet."""
        self.pass_: Pass | None = None
        """The pass that is being measured."""
        self.ready = False
        """Whether the actor is prepared for the current experiment."""
        self.dead = False
        self.beside = False
        """Whether another lane of the node measured during the pass."""
        self.text, self.budget = "", Budget(0.0)
        self.clock_offset_s = 0.0
        """Seconds by which the node's clock is ahead of the clock of this machine."""
        self.born = monotonic()
        self.last_heartbeat: float | None = None
        """Time of the actor's last answer; None while the actor waits for its node."""
        self.heartbeat: Any = None
        self._next_heartbeat = 0.0
        self.poll()

    def begin(self, job: bytes) -> None:
        self.ready = False
        self.last_heartbeat = self.last_heartbeat and monotonic()  # no call since the last experiment
        self.call = self.actor.begin.remote(job)

    def measure(self, pass_: Pass, points: bytes, budget: Budget) -> None:
        """Start to measure a pass."""
        self.pass_, self.budget, self.text = pass_, budget, ""
        self.beside = False
        self.call = self.actor.measure.remote(points, budget.seconds)

    def poll(self) -> None:
        """Ask the actor for its state if a poll is due."""
        if self.heartbeat is None and monotonic() >= self._next_heartbeat:
            self.heartbeat = self.actor.state.remote()

    def take_heartbeat(self) -> None:
        """Take the answer to `poll`. Raises the errors of Ray."""
        heartbeat, self.heartbeat = self.heartbeat, None
        self.text, self.budget.share_done, clock = self._ray.get(heartbeat)
        self.clock_offset_s = clock - time.time()
        self.last_heartbeat = monotonic()
        self._next_heartbeat = self.last_heartbeat + _HEARTBEAT_S

    def idle(self) -> None:
        """Release the resources of the experiment on the node. The actor stays alive."""
        self.ready = False
        self.actor.end.remote()

    def kill(self) -> None:
        """End the actor and, with it, all processes that it started."""
        self.call = self.heartbeat = self.pass_ = None
        self.ready, self.dead = False, True
        self._ray.kill(self.actor, no_restart=True)


class Fleet:
    """The nodes of a cluster that can measure, with their lanes. Lanes stay from one experiment to the next."""

    def __init__(self, cluster: Cluster, nodes: Sequence[Node], alone: bool, log: Callable[[str], None]) -> None:
        """`alone`: whether only one GPU of a node measures at a time. `log` receives messages for the user."""
        self.cluster, self.nodes, self.alone, self.log = cluster, list(nodes), alone, log
        self._lanes: dict[tuple[str, Device], list[Lane]] = {}

    def lanes(self, node: Node, device: Device) -> list[Lane]:
        """The lanes of a node. Replaces killed lanes by new ones."""
        key = node.resources.id, device
        if key not in self._lanes:
            for other in [other for other in self._lanes if other[0] == key[0]]:  # for another device
                self._kill(self._lanes.pop(other))
            shares = Share.of(node.resources, device, self.alone)
            self._lanes[key] = [Lane(self.cluster, node, share) for share in shares]
        self._lanes[key] = [Lane(self.cluster, node, lane.share) if lane.dead else lane for lane in self._lanes[key]]
        return self._lanes[key]

    def forget(self, node: Resources) -> None:
        """Remove a node that has left."""
        self.nodes = [other for other in self.nodes if other.resources.id != node.id]
        for key in [key for key in self._lanes if key[0] == node.id]:
            self._kill(self._lanes.pop(key))

    def of_kind(self, kind: str) -> list[Node]:
        """The nodes of a kind of machine."""
        return [node for node in self.nodes if node.kind == kind]

    def one_of_each(self, machines: Machines | None, wanted: str | None) -> list[Node]:
        """One node for each kind of machine that `machines` and `wanted` choose. Each node matches `wanted`. Raises
        `RunError`."""
        kinds = choose_kinds(self.nodes, machines, wanted)
        return [next(one for one in self.of_kind(kind) if wanted is None or one.matches(wanted)) for kind in kinds]

    def close(self) -> None:
        for lanes in self._lanes.values():
            for lane in lanes:
                lane.actor.leave.remote()
        self._lanes.clear()

    def _kill(self, lanes: Iterable[Lane]) -> None:
        for lane in lanes:
            lane.kill()


@contextmanager
def connected(
    address: str | None, wanted: str | None, alone: bool, ship: bool, log: Callable[[str], None]
) -> Iterator[Fleet]:
    """Connect to the cluster at an address (see `Cluster`) for a `with` block, and yield its machines.

    `wanted`: text that the machines must match. `ship`: whether to copy this ChunkBench to them. Raises `RunError`.
    """
    with (
        shipped(ship) as runtime,
        closing(Cluster(address, runtime)) as cluster,
        closing(Fleet(cluster, cluster.nodes(wanted, log), alone, log)) as fleet,
    ):
        yield fleet


@contextmanager
def shipped(wanted: bool) -> Iterator[Mapping[str, Any]]:
    """Ray's runtime environment with this package, its native module, and its entry points. Empty unless `wanted`.

    The nodes need the same system, Python and PyTorch, and the packages that ChunkBench imports.
    """
    if not wanted:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="chunkbench-ship-") as temporary:
        folder = Path(temporary)
        copy_package(folder)
        installed = distribution("chunkbench")
        metadata = folder / f"chunkbench-{installed.version}.dist-info"
        metadata.mkdir()
        for name in ("METADATA", "entry_points.txt"):
            (metadata / name).write_text(installed.read_text(name) or "", encoding="utf-8")
        yield {"working_dir": str(folder)}
