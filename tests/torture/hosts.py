"""Hosts whose network fails: ranks of a ring on three of them, behind a switch that does harm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from chunkbench import workloads
from chunkbench.bench.store import open_run
from chunkbench.bench.store.results import FAILED
from chunkbench.workloads.ring.result import RingResult
from tests.torture.trials import Harm, Part, Trial, Unavailable
from tests.workloads.ring.made_rings import ended, starting, write
from tests.workloads.ring.test_launcher import PORT, UNSHARE, Network, Refused, done

HOSTS = 3
SWITCH = Path(__file__).with_name("switch.py")
PROGRAMS = ("unshare", "nsenter", "ip", "hostname")


@dataclass
class Switched(Network):
    """Hosts 10.77.0.1 to 10.77.0.3 behind a switch (switch.py)."""

    switch: subprocess.Popen[str] | None = None

    def build(self) -> None:
        self.hold(*UNSHARE)
        for host in range(1, HOSTS + 1):
            self.add_host(host)
            done(*self.within(host), sys.executable, str(SWITCH), "--plain", "wire")
        words = [*self.within(0), sys.executable, str(SWITCH), *(f"to{host}" for host in range(1, HOSTS + 1))]
        self.switch = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.holders.append(self.switch)
        self._heard("here")

    def does(self, **harm: object) -> None:
        """What happens to packets from now on."""
        assert self.switch is not None
        assert self.switch.stdin is not None
        print(json.dumps({"loss": 0.0, "delay": 0.0, "cut": [], **harm}), file=self.switch.stdin, flush=True)
        self._heard("done")

    def processes(self, *hosts: int) -> list[psutil.Process]:
        """What runs on these hosts (none named: on all), apart from what holds their namespaces."""
        held = [self.holders[host].pid for host in hosts or range(1, HOSTS + 1)]
        places = {os.readlink(f"/proc/{pid}/ns/net") for pid in held}
        found = []
        for pid in psutil.pids():
            with suppress(OSError, psutil.Error):
                if os.readlink(f"/proc/{pid}/ns/net") in places and pid not in held:
                    found.append(psutil.Process(pid))
        return found

    def _heard(self, word: str) -> None:
        assert self.switch is not None
        assert self.switch.stdout is not None
        if self.switch.stdout.readline().strip() != word:
            raise Refused("this system refuses sockets for frames")


@contextmanager
def switched() -> Iterator[Switched]:
    """The hosts. Raises Unavailable."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        raise Unavailable(
            f"there is no {' and no '.join(missing)}; Debian has them in util-linux, iproute2 and hostname"
        )
    network = Switched()
    try:
        try:
            network.build()
        except Refused as refused:
            raise Unavailable(f"this system refuses namespaces for networks: {refused}") from None
        yield network
    finally:
        network.close()


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
    seconds, victim = trial.chance.uniform(0.5, 4), trial.chance.randint(2, HOSTS)
    size = TOKENS[kind]
    network.does()  # whatever a trial before left
    spec, out = write(trial.folder, HOSTS, "ring", "zigzag", tokens=size * HOSTS // 2 * 2), trial.folder / "run"
    spec.write_text(spec.read_text().replace("case_limit: 30s", f"case_limit: {LIMIT_S}s"))
    if kind == "slow":
        network.does(delay=trial.chance.uniform(0.001, 0.03))
    elif kind == "loses packets":
        network.does(loss=0.05, seed=trial.number)
    with starting(spec, HOSTS, "10.77.0.1", PORT) as start:
        variables = {"GLOO_SOCKET_IFNAME": "wire"}
        ranks = {n: start(n, variables=variables, behind=network.within(n + 1)) for n in range(1, HOSTS)}
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
                assert case.hosts == HOSTS
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
