"""Measures the passes of a run on the machines of a cluster, also if machines join or leave during the run."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from chunkbench.bench import workload
from chunkbench.bench.experiment import Experiment
from chunkbench.bench.experiment.point import Point
from chunkbench.bench.runner.case_facts import now
from chunkbench.bench.runner.executor import Listener, MeasuredPass, RunJob
from chunkbench.bench.runner.pace import Pace
from chunkbench.bench.runner.passes import Pass, RunOptions
from chunkbench.bench.runner.target import NO_CUDA, Target, machines_of, resolve_on
from chunkbench.bench.store import Result, open_run
from chunkbench.plugins.ray.connection import lines_of, software
from chunkbench.plugins.ray.fleet import Fleet, Lane
from chunkbench.plugins.ray.nodes import Machines, Node, Resources, choose_kinds, node_of, problem_of
from chunkbench.run_error import CannotRunError, RunError

MOST_LOSSES = 2
"""Number of machines that may be lost while they measure the same pass. Then the pass is given up, and its rows have
the status `crashed`."""
_MOST_RESTARTS = 2
"""How often an actor may be lost in a row while its node is alive. Then the actor is not started again."""
_POLL_S = 2.0
"""Seconds between two polls of the list of nodes."""
_WAITING_S = 15.0
"""Seconds to wait for the first answer of a machine before the log names the machine: other work probably uses it."""
_OFFSET_S = 5.0
"""A node's clock counts as wrong if it differs by more than this number of seconds."""


@dataclass(frozen=True)
class Patience:
    """Times to wait before a machine or the run is given up."""

    silent_s: float = 60.0
    """Seconds to wait for an answer of a machine that has answered before."""
    nodes_s: float = 60.0
    """Seconds to wait for a new machine while no machine can measure the pending passes."""


class RayExecutor:
    """Measures an experiment once for each chosen kind of machine in a fleet. All machines of a kind share the
    passes."""

    def __init__(
        self,
        fleet: Fleet,
        experiment: Experiment,
        machines: Machines | None,
        wanted: str | None = None,
        resumed: Path | None = None,
        patience: Patience | None = None,
    ) -> None:
        """`wanted`: text that the machines must match. `resumed`: a run to continue with its kinds of machines.

        Raises `RunError` if the cluster has no such machines.
        """
        self.fleet, self.patience = fleet, patience or Patience()
        before = [] if resumed is None else machines_of(open_run(resumed).manifest.identity)
        missing = [kind for kind in before if not fleet.of_kind(kind)]
        if missing:
            raise RunError(f"the run was started on {missing[0]}, and the cluster has no such machine now")
        chosen = before or choose_kinds(fleet.nodes, machines, wanted)
        self.targets = _targets(fleet, experiment, chosen)
        for target in self.targets:
            names = ", ".join(node.machine for node in fleet.of_kind(target.machine_kind))
            fleet.log(f"on {target.machine_kind}: {names}")
        others = {node.kind for node in fleet.nodes} - set(chosen)
        if others and wanted is None and not before:
            fleet.log(
                f"the cluster also has machines of other kinds, which this run leaves out: {'; '.join(sorted(others))}"
            )

    def measure(self, job: RunJob, pace: Pace, listener: Listener) -> Generator[MeasuredPass, None, None]:
        """Measure the passes on all machines at the same time."""
        run = _Measuring(self.fleet, self.targets, job, pace, listener, self.patience)
        try:
            yield from run.passes()
        except ConnectionError as error:  # from Ray's client, when the head is gone
            raise self.fleet.cluster.lost_head() from error
        finally:
            with suppress(ConnectionError):
                run.close()


def _targets(fleet: Fleet, experiment: Experiment, chosen: Sequence[str]) -> tuple[Target, ...]:
    nodes = [fleet.of_kind(kind)[0] for kind in chosen]
    targets = [resolve_on(experiment, node.environment, node.machine, node.kind) for node in nodes]
    able = tuple(target for target in targets if target.device == "cpu" or target.environment.gpus)
    refusals = [NO_CUDA + f"PyTorch sees no NVIDIA GPU on {one.machine_kind}" for one in targets if one not in able]
    for refusal in refusals:
        fleet.log(f"left out: {refusal}")
    if not able:
        raise RunError(refusals[0])
    return able


class _Measuring:
    """Measures one experiment on a fleet."""

    def __init__(
        self,
        fleet: Fleet,
        targets: Sequence[Target],
        job: RunJob,
        pace: Pace,
        listener: Listener,
        patience: Patience,
    ) -> None:
        self._fleet, self._cluster, self._ray = fleet, fleet.cluster, fleet.cluster.ray
        self._job, self._pace, self._listener, self._patience = job, pace, listener, patience
        self._targets = {target.machine_kind: target for target in targets}
        self._queues = {
            kind: deque(pass_ for pass_ in job.passes if pass_.machine_kind == kind) for kind in self._targets
        }
        self._lanes: list[Lane] = []
        self._styles: dict[int, Mapping[str, Any]] = {}
        self._probes: dict[Any, Resources] = {}
        self._losses: dict[Pass, list[str]] = {}
        self._restarts: dict[str, int] = {}
        self._refusals: dict[str, tuple[str, bool]] = {}
        self._known = {node.resources.id for node in fleet.nodes}
        self._finished: list[MeasuredPass] = []
        self._next_poll = 0.0
        self._empty_since: float | None = None
        self._waiting_logged: set[int] = set()

    def passes(self) -> Generator[MeasuredPass, None, None]:
        """Yield each pass when its rows have arrived. Raises `RunError` if no machine is left to measure the remaining
        passes."""
        for node in self._fleet.nodes:
            self._employ(node)
        while any(self._queues.values()) or any(lane.pass_ for lane in self._lanes):
            self._poll_nodes()
            self._assign()
            self._wait()
            self._notice_silence()
            finished, self._finished = self._finished, []
            self._assign()  # assign before rows are written, so that no machine waits for the disk
            yield from finished
            self._require_machines()

    def close(self) -> None:
        """Leave the machines idle. Kills the actors that are still measuring."""
        for lane in self._lanes:
            if lane.pass_ is None and lane.call is None:
                lane.idle()
            else:
                lane.kill()

    def _employ(self, node: Node) -> None:
        """Use a node if the experiment is measured on its kind of machine."""
        target = self._targets.get(node.kind)
        if target is not None:
            for lane in self._fleet.lanes(node, target.device):
                if lane not in self._lanes:
                    self._start(lane)

    def _start(self, lane: Lane) -> None:
        target = self._targets[lane.node.kind]
        here = Target(target.device, target.dtype, lane.node.environment, lane.node.machine, target.machine_kind)
        points = [point for pass_ in self._job.passes if pass_.machine_kind == lane.node.kind for point in pass_.points]
        earlier = tuple(case for case in self._job.earlier if case.machine == lane.node.machine)
        options = RunOptions()  # only the driver needs the options of the job
        lane.begin(pickle.dumps((self._job.experiment, here, points, earlier, options)))
        self._lanes.append(lane)

    def _poll_nodes(self) -> None:
        """Find out which nodes left and which joined."""
        if monotonic() < self._next_poll:
            return
        self._next_poll = monotonic() + _POLL_S
        if not self._cluster.check_head():
            return
        present = {node.id: node for node in self._cluster.resources()}
        for lane in [lane for lane in self._lanes if lane.node.resources.id not in present]:
            self._lose(lane, "its node left the cluster")
        for node in present.values():
            if node.id not in self._known:
                self._known.add(node.id)
                self._probes[self._cluster.start_probe(node)] = node

    def _assign(self) -> None:
        """Give every idle lane the next pass of its kind."""
        for lane in self._lanes:
            queue = self._queues[lane.node.kind]
            if not lane.ready or lane.pass_ is not None or not queue:
                continue
            pass_ = queue.popleft()
            lane.measure(pass_, pickle.dumps(pass_.points), self._pace.begin(pass_))
            for other in self._lanes:
                if other is not lane and other.node is lane.node and other.pass_ is not None:
                    lane.beside = other.beside = True
        self._pace.machines = max(1, sum(lane.ready for lane in self._lanes))

    def _wait(self) -> None:
        """Wait until an answer arrives, at most until the next poll of the nodes."""
        for lane in self._lanes:
            lane.poll()
        waiting = {ref: (lane, "call") for lane in self._lanes if (ref := lane.call) is not None}
        waiting |= {ref: (lane, "heartbeat") for lane in self._lanes if (ref := lane.heartbeat) is not None}
        refs = [*waiting, *self._probes]
        limit_s = min(0.5, max(0.0, self._next_poll - monotonic()))
        if not refs:
            sleep(limit_s)
            return
        ready, _ = self._ray.wait(refs, num_returns=1, timeout=limit_s, fetch_local=False)
        if ready:  # other answers that have already arrived
            ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
        for ref in ready:
            if ref in self._probes:
                self._welcome(self._probes.pop(ref), self._cluster.answer_of(ref, 5.0))
                continue
            lane, what = waiting[ref]
            if lane in self._lanes:  # the lane was not lost by an earlier answer of this turn
                self._take(lane, what)

    def _take(self, lane: Lane, what: str) -> None:
        """Process an answer of a lane."""
        try:
            if what == "heartbeat":
                lane.take_heartbeat()
                self._show(lane)
                return
            call, lane.call = lane.call, None
            answer = self._ray.get(call)
        except self._ray.exceptions.RayTaskError as error:
            raise RunError(f"{lane.node.name}: {lines_of(error)[-1]}; finished points are kept", "resume") from error
        except self._ray.exceptions.RayError as error:
            self._lose(lane, _reason(error))
            return
        self._keep_log(lane, answer["log"])
        if lane.pass_ is None:
            self._begun(lane, answer)
        else:
            self._measured(lane, lane.pass_, answer)

    def _begun(self, lane: Lane, answer: Mapping[str, Any]) -> None:
        if "refused" in answer:
            self._refusals[lane.node.name] = answer["refused"], answer["nothing runs"]
            self._listener.problem(f"{lane.node.name} does not take part: {answer['refused']}")
            self._lanes.remove(lane)
            return
        self._styles[id(lane)] = answer["styles"]
        lane.ready = True

    def _measured(self, lane: Lane, pass_: Pass, answer: Mapping[str, Any]) -> None:
        measured: dict[Point, Sequence[Result]] = pickle.loads(answer["measured"])
        rows = {point: [_checked(case, lane) for case in cases] for point, cases in measured.items()}
        lane.pass_ = None
        self._restarts.pop(lane.node.resources.id, None)
        self._hand_over(lane, pass_, rows)

    def _hand_over(self, lane: Lane, pass_: Pass, rows: Mapping[Point, Sequence[Result]]) -> None:
        facts = lane.node.environment.model_dump(mode="json")
        if abs(lane.clock_offset_s) > _OFFSET_S:
            facts["clock_offset_s"] = round(lane.clock_offset_s)
        facts["kind"] = lane.node.kind
        styles = self._styles.get(id(lane), {})
        self._finished.append(MeasuredPass(pass_, rows, lane.node.machine, facts, styles, self._pace.end(pass_)))

    def _lose(self, lane: Lane, why: str) -> None:
        """Give up a lost lane. Its pass is measured on another lane, unless the pass was lost too often."""
        pass_ = lane.pass_
        self._listener.problem(f"lost {lane.node.name}: {why}")
        self._lanes.remove(lane)
        lane.kill()
        if pass_ is not None:
            losses = self._losses.setdefault(pass_, [])
            losses.append(f"{lane.node.name}: {why}")
            if len(losses) < MOST_LOSSES:
                self._pace.lose(pass_)
                self._queues[pass_.machine_kind].appendleft(pass_)
            else:
                reason = f"lost with {len(losses)} machines: {'; '.join(losses)}"
                self._hand_over(lane, pass_, _crashed(self._job.experiment, pass_, lane.node, reason))
        self._restart(lane)

    def _restart(self, lane: Lane) -> None:
        """Start a lost actor again if its node is alive."""
        node = lane.node.resources
        if not self._cluster.check_head() or node.id not in {other.id for other in self._cluster.resources()}:
            self._fleet.forget(node)
            self._known.discard(node.id)
            return
        self._restarts[node.id] = self._restarts.get(node.id, 0) + 1
        if self._restarts[node.id] > _MOST_RESTARTS:
            self._listener.problem(
                f"{lane.node.name} is left out: it was lost {self._restarts[node.id]} times in a row"
            )
            return
        self._employ(lane.node)

    def _welcome(self, resources: Resources, answer: Mapping[str, Any]) -> None:
        """Process the answer of a node that joined during the run: use the node if it can measure."""
        problem = problem_of(answer, software())
        if problem:
            self._listener.problem(f"{resources.address} joined the cluster and is left out: {problem}")
            return
        node = node_of(resources, answer)
        self._fleet.nodes.append(node)
        if node.kind in self._targets:
            self._listener.problem(f"{node.name} joined")
        self._employ(node)

    def _notice_silence(self) -> None:
        """Give up lanes that do not answer any more. Name lanes that have never answered in the log."""
        for lane in list(self._lanes):
            if lane.last_heartbeat is None:
                if monotonic() - lane.born > _WAITING_S and id(lane) not in self._waiting_logged:
                    self._waiting_logged.add(id(lane))
                    self._listener.problem(f"waiting for {lane.node.name}: other work of the cluster uses it")
            elif monotonic() - lane.last_heartbeat > self._patience.silent_s:
                self._lose(lane, f"it has not answered for {self._patience.silent_s:.0f} s")

    def _require_machines(self) -> None:
        """Raise `RunError` if passes are pending that no machine can measure any more."""
        stranded = [
            kind
            for kind, queue in self._queues.items()
            if queue and not any(lane.node.kind == kind for lane in self._lanes)
        ]
        if not stranded:
            self._empty_since = None
            return
        if self._refusals and not self._lanes:
            text = "; ".join(f"{name}: {reason}" for name, (reason, _) in self._refusals.items())
            raise (CannotRunError if all(nothing for _, nothing in self._refusals.values()) else RunError)(text)
        if self._empty_since is None:
            self._empty_since = monotonic()
            self._listener.problem(f"no machine of this kind is left: {stranded[0]}; waiting for one to join")
        if monotonic() - self._empty_since > self._patience.nodes_s:
            raise RunError(
                f"no machine of this kind is left in the cluster: {stranded[0]}. Finished points are kept", "resume"
            )

    def _show(self, lane: Lane) -> None:
        if lane.pass_ is not None:
            text = f"{lane.node.machine}: {lane.text}"
            self._listener.activity(lane.pass_.points[-1], text, self._pace.done, self._pace.left_s)

    def _keep_log(self, lane: Lane, lines: bytes) -> None:
        if lines:
            with self._job.log.open("ab") as file:
                file.write(f"\n===== {lane.node.machine}\n".encode() + lines)


def _checked(case: Result, lane: Lane) -> Result:
    """The row of a node, with its start time corrected to the clock of this machine, and with a note if another GPU of
    the node measured at the same time."""
    changes: dict[str, object] = {}
    if abs(lane.clock_offset_s) > _OFFSET_S and case.started_at:
        started = datetime.fromisoformat(case.started_at) - timedelta(seconds=lane.clock_offset_s)
        changes["started_at"] = started.isoformat(timespec="seconds")
    if lane.beside:
        note = "another GPU of the machine measured at the same time"
        changes["note"] = f"{case.note}; {note}" if case.note else note
    return case.model_copy(update=changes) if changes else case


def _crashed(experiment: Experiment, pass_: Pass, node: Node, reason: str) -> dict[Point, list[Result]]:
    """Rows with the status `crashed` for a pass that was lost with its machines."""
    model = workload.of(experiment).result
    return {
        point: [
            model.of_case(
                case,
                experiment=experiment.name,
                label=_label(experiment, case.implementation),
                status="crashed",
                reason=reason,
                seed=experiment.seed,
                started_at=now(),
                machine=node.machine,
            )
            for case in experiment.cases(point)
        ]
        for point in pass_.points
    }


def _label(experiment: Experiment, implementation: str) -> str:
    try:
        return str(workload.of(experiment).implementations().load(implementation).label)
    except Exception:  # an adapter that does not load on this machine has no label
        return implementation


def _reason(error: Exception) -> str:
    """The first line of Ray's message that says why an actor was lost."""
    lines = lines_of(error)
    return next((line for line in lines if "died" in line.casefold() or "killed" in line.casefold()), lines[0])[:300]
