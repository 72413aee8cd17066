"""Hosts whose network fails: ranks of a ring on three of them, behind a switch that does harm."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil

from chunkbench import workloads
from chunkbench.bench.store import open_run
from chunkbench.bench.store.results import FAILED
from chunkbench.workloads.ring.result import RingResult
from tests.torture.network import HOSTS as RANKS
from tests.torture.network import Switched, switched
from tests.torture.trials import Harm, Part, Trial
from tests.workloads.ring.launched import ended, starting, write
from tests.workloads.ring.test_namespaces import PORT, done

LIMIT_S = 20
KINDS = ("slow", "loses packets", "away for a while", "cut off")
TOKENS = {"slow": 1024, "loses packets": 1024, "away for a while": 1 << 14, "cut off": 1 << 16}
"""Of each kind: so many that ranks are at work when the harm comes, and few where every packet takes long."""
LISTENS = "0A"

RECEIVE = """
import socket
with socket.create_server(("10.77.0.1", 29512)) as server:
    print("here", flush=True)
    client, count = server.accept()[0], 0
    while data := client.recv(1 << 16):
        count += len(data)
    print(count)
"""
SEND = "import socket, sys; socket.create_connection(('10.77.0.1', 29512)).sendall(bytes(int(sys.argv[1])))"


def wait_until_busy(rank: subprocess.Popen[str]) -> None:
    """Until a rank has joined the others and computes. (psutil would look for its sockets among those of this host.)"""
    process, deadline, joined = psutil.Process(rank.pid), time.monotonic() + 90, 0.0
    while time.monotonic() < deadline and rank.poll() is None:
        used = sum(process.cpu_times()[:2])
        listens = any(line.split()[3] == LISTENS for line in Path(f"/proc/{rank.pid}/net/tcp").read_text().splitlines())
        joined = joined or (used if listens else 0.0)
        if joined and used > joined + 0.5:
            return
        time.sleep(0.02)
    raise AssertionError(f"the rank did not begin to compute: {rank.poll()}")


def run_ring(network: Switched, trial: Trial, kind: str) -> None:
    """A run of three ranks to which this happens; then the network is well again."""
    seconds, victim = trial.chance.uniform(0.5, 4), trial.chance.randint(2, RANKS)
    size = TOKENS[kind]
    network.does()  # whatever a trial before left
    spec, out = write(trial.folder, RANKS, "ring", "zigzag", tokens=size * RANKS // 2 * 2), trial.folder / "run"
    spec.write_text(spec.read_text().replace("case_limit: 30s", f"case_limit: {LIMIT_S}s"))
    if kind == "slow":
        network.does(delay=trial.chance.uniform(0.001, 0.03))
    elif kind == "loses packets":
        network.does(loss=0.05, seed=trial.number)
    with starting(spec, RANKS, "10.77.0.1", PORT) as start:
        variables = {"GLOO_SOCKET_IFNAME": "wire"}
        ranks = {n: start(n, variables=variables, behind=network.within(n + 1)) for n in range(1, RANKS)}
        leader = start(0, "--out", str(out), variables=variables, behind=network.within(1))
        if kind in ("away for a while", "cut off"):
            wait_until_busy(ranks[victim - 1])
            network.does(cut=[f"to{victim}"])
            if kind == "away for a while":
                time.sleep(seconds)
                network.does()
        code, printed = ended(leader, 150)
        network.does()
        cases = [case for case in open_run(out).cases if isinstance(case, RingResult)]
        assert [case.implementation for case in cases] == ["ring", "zigzag"], printed
        if kind == "cut off":
            assert code == 3, f"exit code {code}: {printed}"
            first = next((case.reason for case in cases if case.status in FAILED), "")
            assert first.startswith(f"rank {victim - 1} "), f"rank {victim - 1} was cut off, not: {first}"
        else:
            assert code == 0, f"exit code {code}: {printed}"
            for case in cases:
                assert case.status in ("ok", "noisy"), f"{case.status}: {case.reason}"
                assert case.max_error is not None
                assert case.max_error < 1e-5
                assert case.hosts == RANKS
        for rank, process in ranks.items():
            try:
                ended(process, 30)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"rank {rank} goes on after its leader and the network came back") from None


def send(network: Switched, trial: Trial, kind: str) -> None:
    """Bytes from a host to another one, which takes a hundredth of the time of a run."""
    count = trial.chance.randint(1, 500_000)
    network.does(delay=trial.chance.uniform(0, 0.005), cut=["to3"])
    server = subprocess.Popen(
        [*network.within(1), sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE, text=True, errors="replace"
    )
    assert server.stdout is not None
    assert server.stdout.readline() == "here\n"
    done(*network.within(2), sys.executable, "-c", SEND, str(count))
    assert server.communicate(timeout=20)[0] == f"{count}\n"


@contextmanager
def trials(act: Callable[[Switched, Trial, str], None]) -> Iterator[Harm]:
    workloads.register()
    with switched() as network:

        def harm(trial: Trial) -> None:
            act(network, trial, trial.chance.choice(KINDS))

        yield harm


PART = Part(
    "hosts",
    "ranks on three hosts: one cut off, or away for a while; all slow, or 5% of the packets lost",
    "a run ends complete and right, or names the lost rank, and nothing goes on",
    partial(trials, run_ring),
    partial(trials, send),
    minutes=8,
)
