"""Ranks on four hosts: network namespaces with names of their own, joined by a bridge, delayed and limited."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from chunkbench.bench.store import open_run
from chunkbench.workloads.ring.result import RingResult
from tests.workloads.ring.launched import ended, starting, write

RANKS = 4
PORT = 29511
"""Nothing else listens in the namespaces."""
RATE = "200mbit"
BYTES_PER_S = 200e6 / 8
SHAPINGS = (
    ("netem", "delay", "1ms", "rate", RATE),
    ("tbf", "rate", RATE, "burst", "64kb", "latency", "50ms"),  # where the kernel has no netem
)
UNSHARE = ("unshare", "--user", "--map-root-user", "--net", "--uts")


class Refused(Exception):
    """The system does not allow a step; the message names it."""


def done(*words: str) -> None:
    """Run a program. Raises Refused."""
    result = subprocess.run(words, capture_output=True, text=True, timeout=20)
    if result.returncode:
        raise Refused(f"{' '.join(words)}: {(result.stderr or result.stdout).strip()}")


@dataclass
class Network:
    """A namespace with a bridge, and below its user namespace one for each host.

    They have no names, so they end with the process that each of them has been started with, and so do the links.
    """

    holders: list[subprocess.Popen[str]] = field(default_factory=list)
    shaping: str = ""
    """How links are slowed down; empty: not at all."""

    def within(self, place: int) -> list[str]:
        """Words before a program that is to run on a host (1 to 4), or beside the bridge (0)."""
        return ["nsenter", f"--target={self.holders[place].pid}", "--user", "--net", "--uts", "--preserve-credentials"]

    def hold(self, *words: str) -> None:
        """Start a process that holds new namespaces. Raises Refused."""
        program = [*words, "sh", "-c", "echo here; exec sleep 3600"]
        process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.holders.append(process)
        assert process.stdout is not None
        if (said := process.stdout.readline().strip()) != "here":
            raise Refused(f"{' '.join(words)}: {said or 'ended'}")

    def build(self) -> None:
        """Hosts 10.77.0.1 to 10.77.0.4. Raises Refused."""
        self.hold(*UNSHARE)
        done(*self.within(0), "ip", "link", "add", "bridge", "type", "bridge")
        done(*self.within(0), "ip", "link", "set", "bridge", "up")
        for host in range(1, RANKS + 1):
            self.add_host(host)
            done(*self.within(0), "ip", "link", "set", f"to{host}", "master", "bridge")
            self.shaping = self._slow_down(host)

    def add_host(self, host: int) -> None:
        """The host of a number, and the link `to<number>` that leads to it. Raises Refused."""
        self.hold(*self.within(0), "unshare", "--net", "--uts")
        link, ends = f"to{host}", ["peer", "name", "wire", "netns", str(self.holders[host].pid)]
        done(*self.within(0), "ip", "link", "add", link, "type", "veth", *ends)
        done(*self.within(0), "ip", "link", "set", link, "up")
        done(*self.within(host), "hostname", f"host{host}")
        done(*self.within(host), "ip", "address", "add", f"10.77.0.{host}/24", "dev", "wire")
        done(*self.within(host), "ip", "link", "set", "lo", "up")
        done(*self.within(host), "ip", "link", "set", "wire", "up")

    def _slow_down(self, host: int) -> str:
        for words in SHAPINGS:
            try:
                done(*self.within(host), "tc", "qdisc", "add", "dev", "wire", "root", *words)
            except Refused:
                continue
            return words[0]
        return ""

    def close(self) -> None:
        for process in self.holders:
            process.kill()
            process.communicate()


def _links() -> set[str]:
    return set(os.listdir("/sys/class/net"))


@pytest.fixture
def network() -> Iterator[Network]:
    missing = [name for name in ("unshare", "nsenter", "ip", "tc", "hostname") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"there is no {' and no '.join(missing)} here")
    before, made = _links(), Network()
    try:
        try:
            made.build()
        except Refused as refused:
            pytest.skip(f"this system refuses namespaces for networks: {refused}")
        yield made
    finally:
        made.close()
    assert _links() == before
    assert not [process for process in made.holders if psutil.pid_exists(process.pid)]


def _rank(network: Network, rank: int) -> tuple[dict[str, str], Sequence[str]]:
    # gloo would look for the address of the host's name, which nobody knows here.
    return {"GLOO_SOCKET_IFNAME": "wire"}, network.within(rank + 1)


@pytest.mark.slow
def test_ranks_on_four_hosts(network: Network, tmp_path: Path) -> None:
    spec, out = write(tmp_path, RANKS, "one_process", "ring", "zigzag", "all_gather", tokens=2048), tmp_path / "run"
    with starting(spec, RANKS, "10.77.0.1", PORT) as start:
        processes = []
        for rank in reversed(range(RANKS)):
            variables, behind = _rank(network, rank)
            words = () if rank else ("--out", str(out))
            processes.append(start(rank, *words, variables=variables, behind=behind))
        *followers, leader = processes
        code, printed = ended(leader, 100)
        assert code == 0, printed
        for follower in followers:
            code, printed = ended(follower, 20)
            assert code == 0, printed
    cases = [case for case in open_run(out).cases if isinstance(case, RingResult)]
    assert [case.implementation for case in cases] == ["one_process", "ring", "zigzag", "all_gather"]
    for case in cases:
        assert case.status == "ok", case.reason
        assert case.max_error is not None
        assert case.max_error < 1e-5
        assert case.hosts == RANKS
        assert len(case.ranks_facts) == RANKS
        if network.shaping:
            assert case.bytes_per_s is not None
            assert case.bytes_per_s < 1.05 * BYTES_PER_S
    # K and V of 512 tokens, two heads of 32 float32 numbers, to three others in turn: 31 ms at this rate, less what
    # the queues take at once.
    ring = cases[1]
    sent = 3 * 2 * 512 * 2 * 32 * 4
    assert [rank.sent_bytes for rank in ring.ranks_facts] == [sent] * RANKS
    if network.shaping:
        for round_ in ring.times:
            assert min(rank.total_s for rank in round_) > (sent - 3 * 65536) / BYTES_PER_S
