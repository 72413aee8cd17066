"""A rank: a process that joins the other ranks and does the jobs that `launch` gives to all of them.

Start it as `python -m chunkbench.workloads.ring.rank`, with a `Seat` as JSON in the environment variable
`CHUNKBENCH_RANK`.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from time import monotonic, perf_counter
from typing import Any, NamedTuple

import psutil

from chunkbench.lifetime import PARENT, end_with_parent
from chunkbench.malloc import give_back

SEAT = "CHUNKBENCH_RANK"
FOREVER = timedelta(days=30)
START_S = 120.0
"""Seconds that ranks and their leader wait for each other at the start."""
BEAT_S = 0.2
END = "end"
"""First message to the ranks if they must end without a job. Otherwise the first message is the name of the device."""
_SAMPLED_ROWS = 8
_PROBE_TOKENS = 2048
"""Largest number of tokens in the probed block."""
_LEAST_PROBES, _MOST_PROBES, _PROBED_FLOPS = 5, 50, 2e10
"""Smallest and largest number of calls of the probed kernel, and the FLOPs to spend on them: about 0.2 s. The fastest
call counts.
"""
_PROBE_BYTES = 1 << 25
"""Largest number of bytes in a probed transfer. On a slow link, the transfer is smaller and takes about a quarter of a
second.
"""


class NoLeaderError(Exception):
    """The process that leads the ranks is not there or does not answer."""


class Seat(NamedTuple):
    """How a process joins the other ranks: address of the store, number of the rank, and its CPUs."""

    host: str
    port: int
    """Port of the store through which all ranks meet."""
    rank: int
    ranks: int
    cpus: tuple[int, ...]


class Answer(NamedTuple):
    """A rank's answer after a pass of attention. Times in seconds."""

    seconds: float
    """Time of a pass after all ranks were ready, mean over the repeats."""
    compute_s: float
    wait_s: float
    transfer_s: float
    sent_bytes: int
    peak_bytes: int | None
    """Peak memory of the session, with its inputs, in bytes. None if the system does not report memory."""
    error: float | None
    """Largest difference to attention in float64, divided by the largest value of that attention. Both are over the
    sampled rows. None if the pass was not checked.
    """
    events: tuple[tuple[str, float, float], ...]
    """(activity, start, end) in seconds after the start of the last repeat."""
    host: str
    """Name of the rank's machine."""


def main() -> None:
    """Join the other ranks, and do jobs until the leader ends."""
    end_with_parent(int(os.environ[PARENT]))
    serve(Seat(*json.loads(os.environ[SEAT])))


def serve(seat: Seat) -> None:
    """Join the other ranks at this seat, and do jobs until the leader says to end or is gone."""
    os.sched_setaffinity(0, seat.cpus)
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore

    deadline = monotonic() + START_S
    store, beats = (open_store(seat.host, seat.port, leads=False, deadline=deadline) for _ in range(2))
    ended = threading.Event()
    threading.Thread(target=_beat, args=(beats, seat.rank, ended), daemon=True).start()
    store.set(f"here/{seat.rank}", "1")
    device = store.get("go").decode()
    if device == END:
        store.set(f"gone/{seat.rank}", "1")
        ended.set()
        return
    if device == "cuda":
        torch.cuda.set_device(seat.rank % torch.cuda.device_count())
    backend = "nccl" if device == "cuda" else "gloo"
    try:
        os.environ["GLOO_SOCKET_IFNAME"] = interface_to(seat.host, seat.port)
        ring = PrefixStore("ring", store)
        dist.init_process_group(backend, store=ring, rank=seat.rank, world_size=seat.ranks)
    except Exception as error:
        store.set(f"ready/{seat.rank}", json.dumps({"error": str(error)}))
        raise
    store.set(f"ready/{seat.rank}", "{}")
    number = 0
    while (job := json.loads(store.get(f"job/{number}")))["do"] != "end":
        torch.set_num_threads(job.pop("threads") or len(seat.cpus))
        try:
            answer: dict[str, Any] = {"answer": JOBS[job.pop("do")](device, job)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        store.set(f"answer/{number}/{seat.rank}", json.dumps(answer))
        number += 1
    ended.set()
    with suppress(Exception):
        dist.destroy_process_group()


def is_loopback(host: str, port: int) -> bool:
    """Whether the address is a loopback, which other machines do not reach."""
    return ipaddress.ip_address(_address(host, port)[1]).is_loopback


def interface_to(host: str, port: int) -> str:
    """The network interface that leads to rank 0. Gloo's own choice may be the loopback.

    Raises OSError if GLOO_SOCKET_IFNAME names an interface that this machine lacks.
    """
    addresses = psutil.net_if_addrs()
    if chosen := os.environ.get("GLOO_SOCKET_IFNAME"):
        if unknown := [name for name in chosen.split(",") if name not in addresses]:
            here = ", ".join(addresses)
            raise OSError(f"GLOO_SOCKET_IFNAME={chosen}: this machine has no {', '.join(unknown)}, but {here}")
        return chosen
    family, address = _address(host, port)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, port))  # a datagram socket sends nothing here
        own = probe.getsockname()[0]
    if ipaddress.ip_address(own).is_loopback:
        return "lo"
    return next(name for name, known in addresses.items() if any(entry.address.split("%")[0] == own for entry in known))


def _address(host: str, port: int) -> tuple[socket.AddressFamily, str]:
    """Family and IP address of a host. Raises OSError with a message that names MASTER_ADDR."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise OSError(f"MASTER_ADDR={host}: {error.strerror or error}") from None
    return family, str(address[0]).split("%")[0]


def open_store(host: str, port: int, leads: bool, deadline: float | None = None) -> Any:
    """The store through which ranks meet. If `leads`, this process creates the store at `port`, or at a free port for
    0.

    Raises OSError if the address cannot be used, and NoLeaderError after the deadline. `deadline` is a time of
    `monotonic`, by default START_S from now.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    if not leads:
        return _joined(host, port, deadline or monotonic() + START_S)
    # Without a socket of its own, the store would listen on all addresses of this machine.
    family, address = _address(host, port)
    try:
        listener = socket.create_server((address, port), family=family)
    except OSError as error:
        raise OSError(f"MASTER_ADDR={host}, MASTER_PORT={port}: {error.strerror or error}") from None
    port = listener.getsockname()[1]
    return TCPStore(
        host, port, is_master=True, wait_for_workers=False, timeout=FOREVER, master_listen_fd=listener.detach()
    )


def _joined(host: str, port: int, deadline: float) -> Any:
    """Connect to the store of rank 0. Another program at that port may never answer, so a thread connects."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    _address(host, port)
    seconds, stores = max(1.0, deadline - monotonic()), list[Any]()

    def ask() -> None:
        with suppress(Exception):
            store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=seconds))
            store.check(["go"])
            store.set_timeout(FOREVER)
            stores.append(store)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(seconds)
    if not stores:
        where = f"MASTER_ADDR={host}, MASTER_PORT={port}"
        raise NoLeaderError(f"no rank 0 at {where} within {START_S:.0f} s: {_reason(host, port)}")
    return stores[0]


def _reason(host: str, port: int) -> str:
    """Why the store of rank 0 does not answer at this address."""
    try:
        socket.create_connection((host, port), 3).close()
    except OSError as error:
        hint = "if rank 0 has MASTER_ADDR=localhost, it listens on the loopback alone: give all ranks one address"
        return f"{error.strerror or error}; {hint}"
    return "another program listens there; choose another MASTER_PORT"


def _beat(store: Any, rank: int, ended: threading.Event) -> None:
    """Signal to the leader that this rank is alive, until `ended`. Ends the process if the leader is gone."""
    count = 0
    while not ended.wait(BEAT_S):
        count += 1
        try:
            store.set(f"beat/{rank}", str(count))
        except Exception:
            if not ended.is_set():
                os._exit(1)


def _run(device: str, job: Mapping[str, Any]) -> Answer:
    """Open a session, run it `repeats` times, and check its results if the job has `check`. With `warm`, an untimed run
    comes first.
    """
    import torch.distributed as dist

    from chunkbench.workloads.ring.placement import Scheme
    from chunkbench.workloads.ring.schemes import open_session
    from chunkbench.workloads.ring.task import Task
    from chunkbench.workloads.ring.world import World

    task, scheme = Task(**job["task"]), Scheme(**job["scheme"])
    world = World(job["link"], device)
    inputs = task.inputs(job["seed"], device)
    inputs.queries(task.rows(1, 0)[:1])  # creates the random numbers before memory is counted
    resident = _memory("VmRSS", trim=True)
    session = open_session(world, scheme, task, inputs)
    seconds, started, repeats, earlier, peak = 0.0, 0.0, job["repeats"], 0, None
    for number in range(-1 if job["warm"] else 0, repeats):
        session.restore()
        if number == 0:
            _memory("VmRSS", trim=True)
            _reset_peak()
            world.events.clear()
            world.sent_bytes = 0
        earlier = len(world.events)
        dist.barrier()
        started = perf_counter()
        session.run()
        if number >= 0:
            seconds += (perf_counter() - started) / repeats
        if number == 0:
            peak = _memory("VmHWM")  # read before `restore` needs more memory
    dist.barrier()
    totals = {
        what: sum(end - start for name, start, end in world.events if name == what) / repeats
        for what in ("compute", "wait", "transfer")
    }
    return Answer(
        seconds,
        totals["compute"],
        totals["wait"],
        totals["transfer"],
        world.sent_bytes // repeats,
        None if peak is None or resident is None else max(0, peak - resident),
        _error(session, task, inputs) if job["check"] else None,
        tuple((name, start - started, end - started) for name, start, end in world.events[earlier:]),
        socket.gethostname(),
    )


def _error(session: Any, task: Any, inputs: Any) -> float:
    """Error of sampled rows, the first and the last among them. NaN if any output of this rank is NaN; 0 if the rank
    has no row.
    """
    import numpy as np
    import torch

    from chunkbench.kernels.reference import attention

    if not len(session.rows):
        return 0.0
    if torch.isnan(session.out).any():
        return float("nan")
    worst = largest = 0.0
    places = np.unique(np.linspace(0, len(session.rows) - 1, _SAMPLED_ROWS).astype(np.int64))
    for place in places:
        row = int(session.rows[place])
        k, v = inputs.keys_values(task.context(row))
        expected = attention(inputs.queries(np.array([row]))[0].cpu(), k.cpu(), v.cpu())
        worst = max(worst, (session.out[int(place)].cpu().double() - expected).abs().max().item())
        largest = max(largest, expected.abs().max().item())
    return worst / largest


def _probe(device: str, job: Mapping[str, Any]) -> dict[str, float]:
    """Measure FLOP/s of the block kernel on a block of the task's size while all ranks compute, and bytes/s of a
    transfer around the ring.
    """
    import numpy as np
    import torch
    import torch.distributed as dist

    from chunkbench.workloads.ring.placement import Scheme
    from chunkbench.workloads.ring.running import Running
    from chunkbench.workloads.ring.schemes import kernel_of
    from chunkbench.workloads.ring.task import Task
    from chunkbench.workloads.ring.world import World

    task = Task(**job["task"])
    world = World(job["link"], device)
    kernel = kernel_of(Scheme("contiguous", "none", job["kernel"]), task, device)
    tokens = np.arange(min(_PROBE_TOKENS, task.tokens // world.size))
    inputs = replace(task, phase="prefill").inputs(0, device)
    q, block = inputs.queries(tokens), kernel.block(len(tokens))
    kernel.fill(block, *inputs.keys_values(tokens))
    running = Running(len(tokens), task.heads, task.head_dim, device)
    flops = 4 * task.heads * task.head_dim * len(tokens) ** 2
    rates = []
    for _ in range(max(_LEAST_PROBES, min(_MOST_PROBES, int(_PROBED_FLOPS / flops)))):  # the same number on every rank
        dist.barrier()
        with world.span("compute"):
            kernel.add(q, block, len(tokens), np.full(len(tokens), len(tokens)), running)
        _, start, end = world.events[-1]
        rates.append(flops / (end - start))
    probe = {"flops_per_s": max(rates)}
    if world.size > 1:
        size = min(_PROBE_BYTES, max(1 << 16, (job["link"] or _PROBE_BYTES) // 4))
        sent, received = (torch.zeros(size // 4, device=device) for _ in range(2))
        times = []
        for _ in range(3):
            dist.barrier()
            start = perf_counter()
            world.exchange(sent, received).wait()
            times.append(perf_counter() - start)
        probe["bytes_per_s"] = sent.nbytes / min(times)
    return probe


JOBS: Mapping[str, Callable[[str, dict[str, Any]], Any]] = {"run": _run, "probe": _probe}
"""Name of a job that a leader may ask for -> the function that does the job."""


def _memory(name: str, trim: bool = False) -> int | None:
    """Bytes in physical memory now (`VmRSS`), or the peak since `_reset_peak` (`VmHWM`). `trim`: first return free
    memory to the system.
    """
    if trim:
        give_back()
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            lines = [line.split() for line in status if line.startswith(name)]
        return int(lines[0][1]) * 1024
    except (OSError, IndexError, ValueError):
        return None


def _reset_peak() -> None:
    with suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as refs:
        refs.write("5")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # otherwise threads of the transport would keep the process alive
