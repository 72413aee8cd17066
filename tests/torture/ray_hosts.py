"""Hosts of a Ray cluster whose network fails: a head and two that measure, behind a switch that does harm."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil

from chunkbench import workloads
from chunkbench.bench.store import DecodeResult
from tests.torture.hosts import HOSTS, Switched, switched
from tests.torture.tiny import check_complete, whole_lines
from tests.torture.trials import Harm, Part, Trial, Unavailable
from tests.workloads.ring.test_launcher import done

HEAD, NODES = 1, range(2, HOSTS + 1)
NAMES = {1: "first", 2: "second", 3: "third"}
ADDRESS = "10.77.0.1:6379"
RAY = Path(sys.executable).with_name("ray")
KINDS = ("slow", "loses packets", "away for a while", "cut off", "head cut off")
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
RUN_LIMIT_S = 300.0
"""A minute until a silent machine is given up, another one without machines, the run, and a busy host."""
LEFT_LIMIT_S = 60.0
LATEST_S = 3.0
"""How long after a point is on disk the network fails, at most."""


class RayHosts:
    """A Ray cluster on the hosts, and the command that measures on it."""

    def __init__(self, network: Switched, folder: Path, hasty: bool) -> None:
        """`hasty`: Ray gives up silent nodes earlier than by default."""
        self.network, self.folder, self.out, self.hasty = network, folder, folder / "run", hasty
        self.driver: subprocess.Popen[bytes]
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
        resume = ["--resume"] if (self.out / "manifest.json").exists() else []
        words = ["-m", "chunkbench", "run", "tiny.yaml", "--on", "ray", "--out", str(self.out), *resume]
        with (self.folder / "said.txt").open("wb") as said:
            self.driver = subprocess.Popen(
                [*self.network.within(HEAD), sys.executable, *words],
                stdout=said,
                stderr=said,
                cwd=self.folder,
                env=self._environment(HEAD) | {"RAY_ADDRESS": ADDRESS},
            )

    def end(self) -> int:
        """Wait until the command ends. Returns its exit code."""
        try:
            code = self.driver.wait(RUN_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the run did not end within {RUN_LIMIT_S:.0f} s: {self.said}") from None
        assert "Traceback" not in self.said, self.said
        return code

    @property
    def said(self) -> str:
        """What the last command said."""
        return (self.folder / "said.txt").read_text(errors="replace")

    def lines(self) -> list[bytes]:
        """The recorded lines, without an incomplete one."""
        return whole_lines(self.out)

    def measures(self, points: int, seconds: float) -> bool:
        """Wait until so many points are on disk, and so long. Returns whether both machines still have to measure."""
        end = time.monotonic() + RUN_LIMIT_S
        while not (self.out / "manifest.json").exists() or len(self.lines()) < points * ROWS:
            assert time.monotonic() < end, f"the run does not begin to measure: {self.said}"
            assert self.driver.poll() is None, f"the run ended before its network failed: {self.said}"
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
        while (left := [words for words in map(_words, self.network.processes()) if _measures(words)]) and (
            time.monotonic() < end
        ):
            time.sleep(0.1)
        assert not left, f"goes on after the run: {left}"

    def check_complete(self, finished: list[bytes]) -> None:
        """The run has all points, each once and right, and those that were finished earlier unchanged."""
        for case in check_complete(self.out, POINTS * ROWS, finished).cases:
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
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env=self._environment(host),
        )

    def _environment(self, host: int) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        health = {f"RAY_health_check_{name}": str(value) for name, value in HEALTH.items() if self.hasty}
        mine = {"CHUNKBENCH_MACHINE": NAMES[host], "TMPDIR": str(self.folder / "tmp")}
        return kept | health | mine

    def _lives(self, host: int) -> bool:
        return any("raylet" in Path(words[0]).name for words in map(_words, self.network.processes(host)) if words)

    def _kill(self, *hosts: int) -> None:
        for _ in range(100):
            left = self.network.processes(*hosts)
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            if not left:
                return
            time.sleep(0.1)
        raise AssertionError(f"does not end: {[_words(process) for process in left]}")


def _words(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def _measures(words: list[str]) -> bool:
    return any(word.startswith(("chunkbench.", "ray::Measurer")) for word in words)


def run_ray(network: Switched, trial: Trial) -> int:
    """A run on two machines to whose network something happens. Returns 0 if it ended too soon for that, else 1."""
    kind = KINDS[trial.number % len(KINDS)]
    points, delay = trial.chance.randint(0, POINTS // 2), trial.chance.uniform(0, LATEST_S)
    victim = trial.chance.choice(NODES)
    seconds = trial.chance.uniform(1, 15) if kind == "away for a while" else trial.chance.uniform(15, 90)
    hosts = RayHosts(network, trial.folder, hasty=kind != "cut off" or trial.chance.random() < 0.5)
    with hosts.cleaned():
        hosts.start()
        if kind == "slow":
            network.does(delay=trial.chance.uniform(0.001, 0.03))
        elif kind == "loses packets":
            network.does(loss=0.05, seed=trial.number)
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
            assert "--resume continues the run" in hosts.said, hosts.said
            finished = finished[: len(finished) // ROWS * ROWS]
            hosts.start()
            hosts.measure()
            code = hosts.end()
            hosts.check_idle()
        assert code == 0, f"exit code {code}: {hosts.said}"
        if kind == "cut off":
            assert f"lost {NAMES[victim]} at 10.77.0.{victim}" in hosts.said, hosts.said
        hosts.check_complete(finished)
    return 1


@contextmanager
def trials() -> Iterator[Harm]:
    """The kinds of harm go round: a trial takes most of a minute, and each shall have its turn."""
    if not RAY.exists():
        raise Unavailable("there is no Ray; `make setup` and `pip install -e '.[ray]'` install it")
    workloads.register()
    with switched() as network:
        for host in (HEAD, *NODES):  # else Ray looks for the name of its host, for ten seconds
            done(*network.within(host), "ip", "route", "add", "default", "dev", "wire")

        yield partial(run_ray, network)


PART = Part(
    "Ray hosts",
    "a head and two machines of a Ray cluster: a machine cut off, or away for a while; all slow, or 5% of the packets "
    "lost; the head away from both",
    "every point has its row once and right, or the run ends with a message and `--resume` completes it; a lost "
    "machine is named, and nothing goes on",
    trials,
    minutes=8,
)
