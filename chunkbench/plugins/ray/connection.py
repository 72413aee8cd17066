"""The connection to a Ray cluster: finds and probes its nodes, and checks that its head answers."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from time import monotonic
from typing import Any

from chunkbench.bench.environment.revision import code_digest
from chunkbench.bench.environment.software import read_native
from chunkbench.plugins.ray import remote
from chunkbench.plugins.ray.nodes import Node, Resources, Software, node_of, problem_of, same_ids
from chunkbench.run_error import RunError
from chunkbench.version import __version__

_PROBE_LIMIT_S = 180.0
"""Maximum seconds to wait for the answer to a probe. A node imports PyTorch first, which takes long from a slow
disk."""
HEAD_LIMIT_S = 20.0
"""Seconds without an answer after which the head counts as lost. After 60 s Ray itself would end this process without a
message."""
_CLIENT_PORT = 10001
"""Default port of Ray's server for drivers outside of the cluster."""
_HOW_TO_START = (
    "To have one, start it with `ray start --head`, name its head with --on ray://HOST:10001, or set "
    "RAY_ADDRESS=HOST:6379"
)
_HOW_TO_CONNECT = (
    "Ray here needs the version of the cluster's Ray. If the cluster uses token authentication, copy ~/.ray/auth_token "
    "of its head to this machine and set RAY_AUTH_MODE=token"
)


class Cluster:
    """A cluster that this process is connected to. `close` ends all tasks and actors that this process started
    there."""

    def __init__(self, address: str | None = None, runtime: Mapping[str, Any] | None = None) -> None:
        """Connect to the cluster at `ray://HOST:PORT`. None stands for the cluster at RAY_ADDRESS, or on this host.

        `runtime`: Ray's runtime environment for tasks and actors on the nodes. Raises `RunError`.
        """
        try:
            import ray
        except ImportError:
            raise RunError("Ray is not installed; `pip install 'chunkbench[ray]'` installs it") from None
        self.ray: Any = ray
        where = address or os.environ.get("RAY_ADDRESS") or "auto"
        if not ray.is_initialized():
            if where != "auto" and not _answers(_address(where)):  # Ray itself would try for minutes
                raise RunError(f"no Ray cluster at {where}: nothing answers there. {_HOW_TO_START}")
            try:
                ray.init(where, log_to_driver=False, logging_level=logging.ERROR, runtime_env=dict(runtime or {}))
            except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
                if "Could not find any running" in str(error):
                    raise RunError(f"no Ray cluster runs on this host. {_HOW_TO_START}") from None
                place = "of this host" if where == "auto" else f"at {where}"
                why = lines_of(error)[0].rstrip(".")
                raise RunError(f"no connection to the Ray cluster {place}: {why}. {_HOW_TO_CONNECT}") from None
        self.ray.cloudpickle.register_pickle_by_value(remote)
        self._head = _address(where if where.startswith("ray://") else ray.get_runtime_context().gcs_address)
        self._head_answered = monotonic()

    def close(self) -> None:
        self.ray.shutdown()

    def check_head(self) -> bool:
        """Whether the head answers now. Raises `RunError` if it has not answered for HEAD_LIMIT_S."""
        if _answers(self._head):
            self._head_answered = monotonic()
            return True
        if monotonic() - self._head_answered > HEAD_LIMIT_S:
            raise self.lost_head()
        return False

    def lost_head(self) -> RunError:
        """The error that ends a run after the head was lost."""
        return RunError(
            "the head of the Ray cluster does not answer any more. Finished points are kept: start the cluster again "
            "and resume the run",
            remedy="resume",
        )

    def resources(self) -> list[Resources]:
        """The live nodes that have CPUs."""
        found = [Resources.of(node) for node in self.ray.nodes() if node["Alive"]]
        return sorted((node for node in found if node.cpus >= 1), key=lambda node: node.address)

    def remote(self, what: Any, node: Resources, **options: Any) -> Any:
        """Return this function or actor class, bound to this node."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(node.id, soft=False)
        return self.ray.remote(scheduling_strategy=here, **options)(what)

    def start_actor(self, actor: type, node: Resources, **resources: Any) -> Any:
        """Start an actor on this node. The actor's method `state` also answers while another method runs."""
        # The method is marked, because Ray's client refuses the group as an option of a call.
        self.ray.method(concurrency_group="state")(actor.state)  # type: ignore[attr-defined]
        return self.remote(actor, node, concurrency_groups={"state": 1}, **resources).remote()

    def start_probe(self, node: Resources) -> Any:
        """Start a probe of a node. Returns a reference to the later answer."""
        return self.remote(remote.probe, node, num_cpus=0, max_retries=1).remote()

    def answer_of(self, probe: Any, limit_s: float) -> Mapping[str, Any]:
        """The answer to a probe. If the node did not answer, a dictionary that says why."""
        try:
            answer: Mapping[str, Any] = self.ray.get(probe, timeout=max(0.0, limit_s))
        except self.ray.exceptions.GetTimeoutError:
            return {"problem": f"it did not answer within {_PROBE_LIMIT_S:.0f} s"}
        except self.ray.exceptions.RayError as error:
            return {"problem": f"Ray can run nothing there: {lines_of(error)[0]}"}
        return answer

    def nodes(self, wanted: str | None, log: Callable[[str], None]) -> list[Node]:
        """All nodes that can measure.

        Raises a `RunError` that names all nodes that cannot measure. With `wanted`, such nodes are left out, and the
        log says so.
        """
        resources = self.resources()
        if not resources:
            raise RunError("the Ray cluster has no node with CPUs")
        here = software()
        deadline = monotonic() + _PROBE_LIMIT_S
        probes = [self.start_probe(node) for node in resources]
        answers = [self.answer_of(probe, deadline - monotonic()) for probe in probes]
        problems = [
            f"{node.address}: {problem}"
            for node, answer in zip(resources, answers, strict=True)
            if (problem := problem_of(answer, here))
        ]
        nodes = [
            node_of(node, answer)
            for node, answer in zip(resources, answers, strict=True)
            if not problem_of(answer, here)
        ]
        if problems and (wanted is None or not nodes):
            listed = "\n  ".join(problems)
            raise RunError(f"nothing was measured, because these nodes cannot:\n  {listed}\n", remedy="ship or choose")
        for problem in problems:
            log(f"left out: {problem}")
        _refuse_mixed_ids(nodes)
        for warning in same_ids(nodes):
            log(warning)
        return nodes


def software() -> Software:
    """The software of this machine, which every node must also have."""
    torch = version("torch").partition("+")[0]
    python = ".".join(map(str, sys.version_info[:2]))
    return Software(python, __version__, code_digest(".py"), torch, read_native().built)


def _address(where: str) -> tuple[str, int]:
    """Host and port of `ray://HOST:PORT`, whose port may be missing, or of `HOST:PORT`."""
    host, _, port = where.removeprefix("ray://").rpartition(":")
    return (host, int(port)) if port.isdigit() else (port, _CLIENT_PORT)


def _answers(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, timeout=2):
            return True
    except OSError:
        return False


def _refuse_mixed_ids(nodes: Sequence[Node]) -> None:
    kinds: dict[str, set[str]] = {}
    for node in nodes:
        kinds.setdefault(node.machine, set()).add(node.kind)
    for machine, several in kinds.items():
        if len(several) > 1:
            raise RunError(
                f"machines of different kinds have the same id {machine!r}: {'; '.join(sorted(several))}. Set "
                "CHUNKBENCH_MACHINE to another id on each of them before `ray start`"
            )


def lines_of(error: Exception) -> list[str]:
    """The lines of an error's message. There is at least one line."""
    return [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
