"""Hosts whose network fails: ranks of a ring on three of them, or a Ray cluster, behind a switch that does harm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from chunkbench import workloads
from chunkbench.bench.store import DecodeResult, open_run
from chunkbench.bench.store.results import FAILED
from chunkbench.workloads.ring.result import RingResult
from tests.torture.runs import Command, words_of
from tests.torture.trials import Harm, Trial, Unavailable
from tests.workloads.ring.test_launcher import ended, starting, write

HOSTS = 3
PORT = 29511
"""Nothing else listens in the namespaces."""
SWITCH = sys.executable, str(Path(__file__).with_name("switch.py"))


class Refused(Exception):
    """The system does not allow a step; the message names it."""


def done(*words: str) -> None:
    """Run a program. Raises Refused."""
    result = subprocess.run(words, capture_output=True, text=True, timeout=20)
    if result.returncode:
        raise Refused(f"{' '.join(words)}: {(result.stderr or result.stdout).strip()}")


@dataclass
class Switched:
    """Hosts 10.77.0.1 to 10.77.0.3 behind a switch (switch.py): a namespace, and below its user namespace one for each
    host.

    They have no names, so they end with the process that each of them has been started with, and so do the links.
    """

    holders: list[subprocess.Popen[str]] = field(default_factory=list)
    switch: subprocess.Popen[str] | None = None

    def within(self, place: int) -> list[str]:
        """Words before a program that is to run on a host (1 to 3), or beside the switch (0)."""
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
        """Raises Refused."""
        self.hold("unshare", "--user", "--map-root-user", "--net", "--uts")
        for host in range(1, HOSTS + 1):
            self.add_host(host)
            done(*self.within(host), *SWITCH, "--plain", "wire")
        words = [*self.within(0), *SWITCH, *(f"to{host}" for host in range(1, HOSTS + 1))]
        self.switch = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.holders.append(self.switch)
        self._heard("here")

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

    def close(self) -> None:
        for process in self.holders:
            process.kill()
            process.communicate()

    def does(self, **harm: object) -> None:
        """What happens to packets from now on."""
        assert self.switch is not None
        assert self.switch.stdin is not None
        print(json.dumps({"loss": 0.0, "delay": 0.0, "cut": [], **harm}), file=self.switch.stdin, flush=True)
        self._heard("done")

    def begins_ill(self, kind: str, trial: Trial) -> None:
        """What happens to packets from the start of a trial."""
        slow = {"delay": trial.chance.uniform(0.001, 0.03)}
        self.does(**{"slow": slow, "loses packets": {"loss": 0.05, "seed": trial.number}}.get(kind, {}))

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
    for program in ("unshare", "nsenter", "ip", "hostname"):
        if shutil.which(program) is None:
            raise Unavailable(f"there is no {program}; Debian has it in util-linux, iproute2 or hostname")
    network = Switched()
    try:
        try:
            network.build()
        except Refused as refused:
            raise Unavailable(f"this system refuses namespaces for networks: {refused}") from None
        yield network
    finally:
        network.close()


TOKENS = {"slow": 1024, "loses packets": 1024, "away for a while": 1 << 14, "cut off": 1 << 16}
"""Of each kind: so many that ranks are at work when the harm comes, and few where every packet takes long."""
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
        listens = any(line.split()[3] == "0A" for line in Path(f"/proc/{rank.pid}/net/tcp").read_text().splitlines())
        joined = joined or (used if listens else 0.0)
        if joined and used > joined + 0.5:
            return
        time.sleep(0.02)
    raise AssertionError(f"the rank did not begin to compute: {rank.poll()}")


def run_ring(network: Switched, trial: Trial, kind: str) -> None:
    """A run of three ranks to which this happens; then the network is well again."""
    seconds, victim = trial.chance.uniform(0.5, 4), trial.chance.randint(2, HOSTS)
    size = TOKENS[kind]
    spec, out = write(trial.folder, HOSTS, "ring", "zigzag", tokens=size * HOSTS // 2 * 2), trial.folder / "run"
    spec.write_text(spec.read_text().replace("case_limit: 30s", "case_limit: 20s"))
    network.begins_ill(kind, trial)
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
def ring_on_hosts(act: Callable[[Switched, Trial, str], None]) -> Iterator[Harm]:
    workloads.register()
    with switched() as network:

        def harm(trial: Trial) -> None:
            act(network, trial, trial.chance.choice(list(TOKENS)))

        yield harm


HEAD, NODES = 1, range(2, HOSTS + 1)
NAMES = {1: "first", 2: "second", 3: "third"}
ADDRESS = "10.77.0.1:6379"
RAY = Path(sys.executable).with_name("ray")
HARMS = ("slow", "loses packets", "away for a while", "cut off", "head cut off")
POINTS, ROWS = 8, 2
EXPERIMENT = """\
name: tiny
dtype: float32
budget: 40s
case_limit: 30s
implementations: [naive, chunk_attn]
defaults: {n_c: 2, batch_size: 2, heads: 2, head_dim: 16, chunk_size: 16, threads: 1}
sweep:
  - {n_p: [16, 32, 48, 64, 80, 96, 112, 128], n_s: 16}
"""
HEALTH = {"period_ms": 1000, "timeout_ms": 2000, "initial_delay_ms": 1000, "failure_threshold": 3}
"""Ray asks its nodes so often, and takes a silent one for dead within 10 s. By default that takes a minute, so the run
itself gives up the node before: too long for most trials."""
START_LIMIT_S = 90.0
LEFT_LIMIT_S = 60.0
LATEST_S = 3.0
"""How long after a point is on disk the network fails, at most."""


class RayHosts(Command):
    """A Ray cluster on the hosts, and the command that measures on it."""

    def __init__(self, network: Switched, folder: Path, hasty: bool) -> None:
        """`hasty`: Ray gives up silent nodes earlier than by default."""
        # A minute until a silent machine is given up, another one without machines, the run, and a busy host.
        super().__init__(folder, folder / "run", limit_s=300.0)
        self.network, self.hasty = network, hasty
        (folder / "tiny.yaml").write_text(EXPERIMENT)
        (folder / "tmp").mkdir()

    def start(self) -> None:
        """Start Ray where it does not run: on the head, then on the nodes at the same time."""
        for hosts in ((HEAD,), NODES):
            missing = [host for host in hosts if not self._lives(host)]
            for host in missing:
                self._kill(host)  # agents may outlive their node
            started = {host: self._start(host) for host in missing}
            for host, process in started.items():
                said, _ = process.communicate(timeout=START_LIMIT_S)
                assert process.returncode == 0, f"`ray start` on host {host}: {said}"

    def measure(self) -> None:
        """Start the command; it resumes if the directory holds a run."""
        words = [*self.network.within(HEAD), sys.executable, "-m", "chunkbench", "run", "tiny.yaml", "--on", "ray"]
        self.spawn(words, self._environment(HEAD) | {"RAY_ADDRESS": ADDRESS}, both=True)

    def end(self) -> int:
        """Wait until the command ends. Returns its exit code."""
        code = super().end()
        assert "Traceback" not in self.errors, self.errors
        return code

    def measures(self, points: int, seconds: float) -> bool:
        """Wait until so many points are on disk, and so long. Returns whether both machines still have to measure."""
        end = time.monotonic() + self.limit_s
        while not (self.out / "manifest.json").exists() or len(self.lines()) < points * ROWS:
            assert time.monotonic() < end, f"the run does not begin to measure: {self.errors}"
            assert self.driver.poll() is None, f"the run ended before its network failed: {self.errors}"
            time.sleep(0.02)
        time.sleep(seconds)
        return len(self.lines()) <= (POINTS - 3) * ROWS

    def pause(self, seconds: float) -> None:
        """Wait, at most until the command ends."""
        with suppress(subprocess.TimeoutExpired):
            self.driver.wait(seconds)

    def restart_nodes(self) -> None:
        """Start the nodes again, as one does with nodes that the head has given up."""
        self._kill(*NODES)
        self.start()

    def check_idle(self) -> None:
        """Nothing measures any more, though the cluster lives on."""
        end = time.monotonic() + LEFT_LIMIT_S
        while (left := [words for words in map(words_of, self.network.processes()) if _measures(words)]) and (
            time.monotonic() < end
        ):
            time.sleep(0.1)
        assert not left, f"goes on after the run: {left}"

    def check_complete(self, finished: list[bytes]) -> None:
        """The run has all points, each once and right, and those that were finished earlier unchanged."""
        for case in self.check_rows(POINTS * ROWS, finished).cases:
            assert isinstance(case, DecodeResult)
            assert case.status in ("ok", "noisy"), f"{case.status}: {case.reason}"
            assert case.max_error is not None
            assert case.max_error < 1e-5
            assert case.machine in (NAMES[host] for host in NODES)

    @contextmanager
    def cleaned(self) -> Iterator[None]:
        """Leave nothing behind, and the network well, whatever fails."""
        try:
            yield
        finally:
            self.network.does()
            self._kill()
            if hasattr(self, "driver"):
                self.driver.wait()
            for path in self.folder.glob("*/session_*/sockets"):  # cannot be copied, if the trial's files are kept
                shutil.rmtree(path, ignore_errors=True)

    def _start(self, host: int) -> subprocess.Popen[str]:
        head = ["--head", "--port=6379", "--num-cpus=0", "--include-dashboard=false", "--disable-usage-stats"]
        role = head if host == HEAD else [f"--address={ADDRESS}", "--num-cpus=1"]
        place = [f"--node-ip-address=10.77.0.{host}", f"--temp-dir={self.folder / str(host)}"]
        return subprocess.Popen(
            [*self.network.within(host), str(RAY), "start", *role, *place, f"--object-store-memory={80 << 20}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            cwd=self.folder, env=self._environment(host),
        )  # fmt: skip

    def _environment(self, host: int) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        health = {f"RAY_health_check_{name}": str(value) for name, value in HEALTH.items() if self.hasty}
        mine = {"CHUNKBENCH_MACHINE": NAMES[host], "TMPDIR": str(self.folder / "tmp")}
        return kept | health | mine

    def _lives(self, host: int) -> bool:
        return any("raylet" in Path(words[0]).name for words in map(words_of, self.network.processes(host)) if words)

    def _kill(self, *hosts: int) -> None:
        for _ in range(100):
            left = self.network.processes(*hosts)
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            if not left:
                return
            time.sleep(0.1)
        raise AssertionError(f"does not end: {[words_of(process) for process in left]}")


def _measures(words: list[str]) -> bool:
    return any(word.startswith(("chunkbench.", "ray::Measurer")) for word in words)


def run_ray(network: Switched, trial: Trial) -> int:
    """A run on two machines to whose network something happens. Returns 0 if it ended too soon for that, else 1."""
    kind = HARMS[trial.number % len(HARMS)]
    points, delay = trial.chance.randint(0, POINTS // 2), trial.chance.uniform(0, LATEST_S)
    victim = trial.chance.choice(NODES)
    seconds = trial.chance.uniform(1, 15) if kind == "away for a while" else trial.chance.uniform(15, 90)
    hosts = RayHosts(network, trial.folder, hasty=kind != "cut off" or trial.chance.random() < 0.5)
    with hosts.cleaned():
        hosts.start()
        network.begins_ill(kind, trial)
        hosts.measure()
        if kind in ("away for a while", "cut off", "head cut off"):
            if not hosts.measures(points, delay):
                return 0
            network.does(cut=[f"to{HEAD if kind == 'head cut off' else victim}"])
            if kind != "cut off":
                hosts.pause(seconds)
                network.does()
        if kind == "head cut off" and hosts.driver.poll() is None:
            hosts.restart_nodes()
        code, finished = hosts.end(), hosts.lines()
        network.does()
        hosts.check_idle()
        if kind == "head cut off" and code == 2:
            assert "--resume continues the run" in hosts.errors, hosts.errors
            finished = finished[: len(finished) // ROWS * ROWS]
            hosts.start()
            hosts.measure()
            code = hosts.end()
            hosts.check_idle()
        assert code == 0, f"exit code {code}: {hosts.errors}"
        if kind == "cut off":
            assert f"lost {NAMES[victim]} at 10.77.0.{victim}" in hosts.errors, hosts.errors
        hosts.check_complete(finished)
    return 1


@contextmanager
def ray_on_hosts() -> Iterator[Harm]:
    """The kinds of harm go round: a trial takes most of a minute, and each shall have its turn."""
    if not RAY.exists():
        raise Unavailable("there is no Ray; `make setup` and `pip install -e '.[ray]'` install it")
    workloads.register()
    with switched() as network:
        for host in (HEAD, *NODES):  # else Ray looks for the name of its host, for ten seconds
            done(*network.within(host), "ip", "route", "add", "default", "dev", "wire")

        yield partial(run_ray, network)
