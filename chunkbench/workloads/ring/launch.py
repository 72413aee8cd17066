"""Starts ranks, gives them jobs, and names the rank that dies, hangs or fails."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Literal

from chunkbench.bench.child import ChildProcess
from chunkbench.workloads.ring.placement import Scheme
from chunkbench.workloads.ring.rank import BEAT_S, END, SEAT, START_S, Answer, Seat, is_loopback, open_store
from chunkbench.workloads.ring.task import Task

LOOPBACK = "127.0.0.1"
_PROGRAM = (sys.executable, "-m", "chunkbench.workloads.ring.rank")
_POLL_S = 0.01
_END_S = 3.0
_SETTLE_S = 1.0
"""Seconds to wait after a rank's error. If another rank turns out dead in this time, that rank is the cause."""


class RankLostError(Exception):
    """A rank died, hangs or failed. The message names the rank. `status` is the status of the case."""

    def __init__(self, message: str, status: Literal["crashed", "timeout", "error"] = "error") -> None:
        super().__init__(message)
        self.status = status


class Ranks:
    """Ranks that wait for jobs. All are children of this process, or only rank 0 if a launcher started the others
    (`GivenWorld`).
    """

    def __init__(
        self, ranks: int, threads: int | None, device: str, log: Path | None = None, given: GivenWorld | None = None
    ) -> None:
        """Start the ranks. Raises `RankLostError`."""
        self.ranks, self.threads, self._number = ranks, threads, 0
        self._children: dict[int, ChildProcess] = {}
        self._store: Any = open_store(LOOPBACK, 0, leads=True) if given is None else given.store
        self._store.set("go", device)
        host, port = (LOOPBACK, self._store.port) if given is None else (given.host, given.port)
        for rank in range(ranks) if given is None else (0,):
            cpus = share_of_cpus(rank, ranks) if given is None else given.cpus
            seat = Seat(host, port, rank, ranks, cpus)
            self._children[rank] = ChildProcess(_PROGRAM, os.environ | {SEAT: json.dumps(seat)}, log)
        try:
            self._await("ready", START_S)
        except BaseException as error:
            self.close(lost=True)
            if given is not None and isinstance(error, RankLostError) and is_loopback(host, port):
                raise RankLostError(
                    f"{error}; MASTER_ADDR={host} is the loopback, which other machines do not reach", error.status
                ) from None
            raise

    def run(
        self,
        scheme: Scheme,
        task: Task,
        link: int | None,
        seed: int,
        limit_s: float,
        *,
        check: bool = False,
        warm: bool = False,
        repeats: int = 1,
    ) -> list[Answer]:
        """Run a task on all ranks, `repeats` times. Raises `RankLostError` after closing the ranks."""
        job = {"scheme": asdict(scheme), "task": asdict(task), "link": link, "seed": seed}
        return [
            Answer(*answer)
            for answer in self._ask("run", job | {"check": check, "warm": warm, "repeats": repeats}, limit_s)
        ]

    def probe(self, task: Task, kernel: str, link: int | None, limit_s: float) -> list[Mapping[str, float]]:
        """Measure FLOP/s and bytes/s of each rank. Raises `RankLostError`."""
        return self._ask("probe", {"task": asdict(task), "kernel": kernel, "link": link}, limit_s)

    def close(self, lost: bool = False) -> None:
        """End the ranks. If one is `lost`, end them at once. Does nothing if they have ended."""
        if self._store is None:
            return
        with suppress(Exception):
            self._store.set(f"job/{self._number}", json.dumps({"do": "end"}))
        deadline = monotonic() + (0 if lost else _END_S)
        for child in self._children.values():
            child.end(max(0.0, deadline - monotonic()))
        self._children.clear()
        self._store = None  # closes the store's port

    def _ask(self, what: str, job: Mapping[str, Any], limit_s: float) -> list[Any]:
        number, self._number = self._number, self._number + 1
        self._store.set(f"job/{number}", json.dumps({"do": what, "threads": self.threads, **job}))
        try:
            answers = self._await(f"answer/{number}", limit_s)
        except BaseException:
            self.close(lost=True)
            raise
        return [json.loads(answer)["answer"] for answer in answers]

    def _await(self, key: str, limit_s: float) -> list[bytes]:
        """Wait until every rank has set `key`, and return the values. Raises `RankLostError` if a rank fails."""
        deadline, missing = monotonic() + limit_s, set(range(self.ranks))
        failed: dict[int, str] = {}
        values: dict[int, bytes] = {}
        while missing - failed.keys():
            for rank in sorted(missing - failed.keys()):
                if self._store.check([f"{key}/{rank}"]):
                    value = self._store.get(f"{key}/{rank}")
                    error = json.loads(value).get("error")
                    if error is not None:
                        failed[rank] = error
                        deadline = min(deadline, monotonic() + _SETTLE_S)
                        continue
                    values[rank] = value
                    missing.discard(rank)
            self._raise_if_ended()
            if monotonic() > deadline:
                break
            sleep(_POLL_S)
        if failed:
            rank, error = min(failed.items())
            if dead := self._dead(failed.keys()):  # the dead rank may be the cause of the others' errors
                raise RankLostError(f"{_named(dead)} {_verb(dead, 'does', 'do')} not run", "crashed")
            raise RankLostError(f"rank {rank}: {error}")
        if missing:
            dead = self._dead()
            if dead and not missing & {*dead}:  # the rank died after its answer, and the others wait for data from it
                lost = f"{_named(dead)} {_verb(dead, 'does', 'do')} not run any more"
                raise RankLostError(
                    f"{lost}; {_named(sorted(missing))} gave no answer within {limit_s:.0f} s", "timeout"
                )
            slow = [rank for rank in dead if rank in missing] or sorted(missing)
            state = f"{_verb(slow, 'does', 'do')} not run" if dead else _verb(slow, "runs", "run")
            raise RankLostError(f"{_named(slow)} gave no answer within {limit_s:.0f} s and {state}", "timeout")
        return [values[rank] for rank in range(self.ranks)]

    def _raise_if_ended(self) -> None:
        for rank, child in self._children.items():
            if child.ended:
                raise RankLostError(f"rank {rank} {child.ended}", "crashed")

    def _dead(self, but: Collection[int] = ()) -> list[int]:
        """Ranks, except those of `but`, whose heartbeat has stopped."""
        before = self._beats()
        sleep(3 * BEAT_S)
        after = self._beats()
        return [rank for rank in range(self.ranks) if rank not in but and before.get(rank) == after.get(rank)]

    def _beats(self) -> dict[int, bytes]:
        keys = {rank: f"beat/{rank}" for rank in range(self.ranks)}
        return {rank: self._store.get(key) for rank, key in keys.items() if self._store.check([key])}


def _named(ranks: Sequence[int]) -> str:
    return f"{_verb(ranks, 'rank', 'ranks')} {', '.join(map(str, ranks))}"


def _verb(ranks: Sequence[int], one: str, several: str) -> str:
    return one if len(ranks) == 1 else several


class GivenWorld:
    """The world that the variables RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT describe (`torchrun`, `srun`)."""

    def __init__(self, rank: int, size: int, host: str, port: int) -> None:
        self.rank, self.size, self.host, self.port = rank, size, host, port

    @cached_property
    def store(self) -> Any:
        """The store through which the ranks meet. This process creates the store, unless `torchrun` already has one at
        this port. Raises `RankLostError`.
        """
        has_one = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        try:
            return open_store(self.host, self.port, leads=not has_one)
        except OSError as error:
            raise RankLostError(str(error)) from None

    def dismiss(self) -> None:
        """End the ranks above 0 without giving them a job."""
        waits = [("here", START_S), ("gone", _END_S)]
        for word, seconds in waits:
            deadline = monotonic() + seconds
            keys = [f"{word}/{rank}" for rank in range(1, self.size)]
            while not self.store.check(keys) and monotonic() < deadline:
                sleep(_POLL_S)
            self.store.set("go", END)

    def follow(self) -> None:
        """Serve as a rank above 0 until the leader ends."""
        from chunkbench.workloads.ring.rank import serve

        serve(Seat(self.host, self.port, self.rank, self.size, self.cpus))

    @property
    def cpus(self) -> tuple[int, ...]:
        """This rank's share of the machine's CPUs. `torchrun` sets the number of ranks on this machine."""
        local, size = (int(os.environ.get(name) or default) for name, default in _LOCAL)
        return share_of_cpus(local, size)


_LOCAL = (("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1))


def share_of_cpus(rank: int, ranks: int) -> tuple[int, ...]:
    """The CPUs of one rank: an equal part of the machine's CPUs. If there are too few, several ranks share a CPU."""
    cpus = sorted(os.sched_getaffinity(0))
    share = cpus[rank * len(cpus) // ranks : (rank + 1) * len(cpus) // ranks]
    return tuple(share or [cpus[rank % len(cpus)]])


def world_from_environment() -> GivenWorld | None:
    """The world that the environment describes. None without RANK or WORLD_SIZE. Raises `ValueError` if other variables
    are missing or are not numbers.
    """
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return None
    missing = [name for name in names if not os.environ.get(name)]
    if missing:
        raise ValueError(f"RANK and WORLD_SIZE are set, so {' and '.join(missing)} must be set too")
    wrong = [
        f"{name}={os.environ[name]}" for name in names if name != "MASTER_ADDR" and not os.environ[name].isdecimal()
    ]
    if wrong:
        raise ValueError(f"{' and '.join(wrong)} must be a whole number")
    rank, size, host, port = (os.environ[name] for name in names)
    return GivenWorld(int(rank), int(size), host, int(port))
