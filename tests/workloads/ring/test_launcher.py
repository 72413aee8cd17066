"""Ranks that a launcher starts, and how they meet."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import psutil
import pytest

from chunkbench.bench.store import Run, open_run
from chunkbench.bench.store.results import FAILED
from chunkbench.workloads.ring.launch import GivenWorld, RankLostError, Ranks
from chunkbench.workloads.ring.rank import NoLeaderError, interface_to, is_loopback, open_store
from chunkbench.workloads.ring.result import RingResult
from chunkbench.workloads.serving.servers.process import free_port

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "chunkbench", "run"]
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")

EXPERIMENT = """\
kind: ring
dtype: float32
budget: 1s
case_limit: 30s
rounds: 3
implementations: [{implementations}]
baseline: {baseline}
sweep:
  - {{n_p: {tokens}, heads: 2, head_dim: 32, ranks: {ranks}, threads: 1}}
"""

Start = Callable[..., subprocess.Popen[str]]


def write(folder: Path, ranks: int, *implementations: str, tokens: int = 256) -> Path:
    """An experiment of one point; the first implementation is the baseline."""
    path, names = folder / "ranks.yaml", ", ".join(implementations)
    path.write_text(EXPERIMENT.format(ranks=ranks, tokens=tokens, implementations=names, baseline=implementations[0]))
    return path


@contextmanager
def starting(spec: Path, size: int, host: str, port: int) -> Iterator[Start]:
    """Starts `chunkbench run` as a rank, with more words and variables, behind the words of another program.

    What was started is killed at the end, if it has not ended.
    """
    running: list[subprocess.Popen[str]] = []

    def start(
        rank: int, *words: str, variables: Mapping[str, str] | None = None, behind: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        of_rank = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": host, "MASTER_PORT": port}
        kept = {name: value for name, value in os.environ.items() if name not in NAMES}
        process = subprocess.Popen(
            [*behind, *COMMAND, str(spec), "-q", *words],
            env=kept | {name: str(value) for name, value in of_rank.items()} | dict(variables or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
        )
        running.append(process)
        return process

    try:
        yield start
    finally:
        for process in running:
            process.kill()
            process.communicate()


def ended(process: subprocess.Popen[str], within_s: float = 60) -> tuple[int, str]:
    """The exit code and what was printed. Raises TimeoutExpired if a process goes on."""
    printed, _ = process.communicate(timeout=within_s)
    return process.returncode, printed


SCHEMES = ("one_process", "ring", "zigzag")
LONG = 1 << 16
"""Tokens whose passes take several seconds."""


def check_results(run: Run, ranks: int, names: Sequence[str] = SCHEMES) -> list[RingResult]:
    """Every case was checked, and timed on all ranks."""
    found = [case for case in run.cases if isinstance(case, RingResult)]
    assert [case.implementation for case in found] == [*names]
    for case in found:
        assert case.status == "ok", case.reason
        assert case.max_error is not None
        assert case.max_error < 1e-5
        assert {len(times) for times in case.times} == {ranks}
    assert not run.manifest.interrupted
    return found


def wait_until_busy(follower: subprocess.Popen[str]) -> None:
    """Until a rank has computed for half a second after it joined the others."""
    process, deadline = psutil.Process(follower.pid), time.monotonic() + 60
    joined: float | None = None
    while time.monotonic() < deadline and follower.poll() is None:
        used = sum(process.cpu_times()[:2])
        if joined is None and any(one.status == "LISTEN" for one in process.net_connections("tcp")):
            joined = used
        if joined is not None and used > joined + 0.5:
            return
        time.sleep(0.05)
    raise AssertionError(f"the rank did not begin to compute: {follower.poll()}")


@pytest.mark.slow
def test_rank_0_leads_and_rank_1_ends_with_it(tmp_path: Path) -> None:
    spec = write(tmp_path, 2, *SCHEMES)
    with starting(spec, 2, "127.0.0.1", free_port()) as start:
        follower, leader = start(1), start(0, "--out", str(tmp_path / "run"))
        code, printed = ended(leader)
        assert code == 0, printed
        assert ended(follower, 20) == (0, "")
    assert (tmp_path / "run" / "report.html").is_file()
    assert (tmp_path / "run" / "figure.png").is_file()
    check_results(open_run(tmp_path / "run"), 2)


@pytest.mark.slow
def test_torchrun_starts_ranks(tmp_path: Path) -> None:
    """Its own process has the store through which they meet."""
    spec, out = write(tmp_path, 2, *SCHEMES), tmp_path / "run"
    words = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port()), "--no-python"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words, *COMMAND, str(spec), "-q", "--out", str(out)],
        env={name: value for name, value in os.environ.items() if name not in NAMES},
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    check_results(open_run(out), 2)


@pytest.mark.slow
def test_rank_1_ends_where_rank_0_has_nothing_to_measure(tmp_path: Path) -> None:
    """The experiment has points of two ranks, and three were started."""
    spec, out = write(tmp_path, 2, *SCHEMES), tmp_path / "run"
    with starting(spec, 3, "127.0.0.1", free_port()) as start:
        followers = [start(1), start(2)]
        code, printed = ended(start(0, "--out", str(out)))
        assert code == 3, printed  # nothing was measured
        for follower in followers:
            ended(follower, 20)
    assert {(case.status, case.reason) for case in open_run(out).cases} == {
        ("unsupported", "this run was started with WORLD_SIZE=3")
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "limit", "reason"),
    [(signal.SIGKILL, 30, "rank 1 "), (signal.SIGSTOP, 6, "rank 1 gave no answer within 6 s and does not run")],
)
def test_a_follower_that_is_lost_is_named(tmp_path: Path, how: signal.Signals, limit: int, reason: str) -> None:
    """Rank 0 cannot ask the system what became of it, and sees that its own transfers fail or take too long."""
    spec, out = write(tmp_path, 2, "zigzag", tokens=LONG), tmp_path / "run"
    spec.write_text(spec.read_text().replace("case_limit: 30s", f"case_limit: {limit}s"))
    with starting(spec, 2, "127.0.0.1", free_port()) as start:
        follower, leader = start(1), start(0, "--out", str(out))
        wait_until_busy(follower)
        follower.send_signal(how)
        code, printed = ended(leader)
    assert code == 3, printed
    (case,) = open_run(out).cases
    assert case.status in FAILED
    assert case.reason[: len(reason)] == reason


@pytest.mark.slow
def test_rank_1_ends_if_rank_0_is_killed(tmp_path: Path) -> None:
    spec = write(tmp_path, 2, "zigzag", tokens=LONG)
    with starting(spec, 2, "127.0.0.1", free_port()) as start:
        follower, leader = start(1), start(0, "--out", str(tmp_path / "run"))
        wait_until_busy(follower)
        children = psutil.Process(leader.pid).children(recursive=True)
        assert children, "rank 0 computes in a process of its own"
        leader.kill()
        code, _ = ended(follower, 20)
        assert code != 0
        assert not psutil.wait_procs(children, timeout=20)[1]


def test_variables_that_are_missing_are_wrong_usage(tmp_path: Path) -> None:
    with starting(write(tmp_path, 2, *SCHEMES), 2, "", 0) as start:
        code, printed = ended(start(0, "--out", str(tmp_path / "run")))
    assert code == 2
    assert "MASTER_ADDR must be set too" in printed
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_ranks_meet_at_each_address_of_the_loopback(host: str) -> None:
    if host == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6")
    led = open_store(host, 0, leads=True)
    led.set("go", "cpu")
    joined = open_store(host, led.port, leads=False, deadline=monotonic() + 20)
    assert joined.get("go") == b"cpu"
    assert is_loopback(host, led.port)
    assert interface_to(host, led.port) == "lo"


def test_a_stranger_at_the_port_of_rank_0_is_no_rank_0() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        began, port = monotonic(), stranger.getsockname()[1]
        with pytest.raises(NoLeaderError, match=f"MASTER_PORT={port} .*another program listens there"):
            open_store("127.0.0.1", port, leads=False, deadline=monotonic() + 2)
        assert monotonic() - began < 8


def test_nobody_at_the_port_of_rank_0_says_what_may_be_the_cause() -> None:
    with pytest.raises(NoLeaderError, match=r"Connection refused; if rank 0 has MASTER_ADDR=localhost"):
        open_store("127.0.0.1", free_port(), leads=False, deadline=monotonic() + 1)


def test_an_address_that_is_none_is_named() -> None:
    with pytest.raises(OSError, match=r"MASTER_ADDR=no\.such\.host\.invalid: "):
        open_store("no.such.host.invalid", 1, leads=True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"MASTER_ADDR=127.0.0.1, MASTER_PORT={port}: Address already in use"):
            open_store("127.0.0.1", port, leads=True)


def test_the_cause_of_a_rank_reaches_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    world = GivenWorld(0, 1, "127.0.0.1", free_port())
    cause = r"rank 0: GLOO_SOCKET_IFNAME=ib0: this machine has no ib0, but .*lo"
    with pytest.raises(RankLostError, match=rf"{cause}.*MASTER_ADDR=127\.0\.0\.1 is the loopback"):
        Ranks(1, 1, "cpu", given=world)
