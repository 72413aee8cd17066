"""Forked workers: they start at once, and their death does not end the parent."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep
from typing import Any

import psutil
import pytest

from chunkbench.bench.measure.caches import last_level_cache_bytes, sweep_bytes, sweep_file
from chunkbench.bench.runner import client
from chunkbench.bench.runner.client import WorkerCrashed, WorkerProcess, WorkerTimeout

POINT = {
    "n_p": 40, "n_s": 32, "n_c": 2, "batch_size": 2, "heads": 2, "kv_heads": 2, "head_dim": 32, "chunk_size": 16,
    "block_size": 16, "dtype": "float32", "device": "cpu", "threads": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    """A worker that computes nothing; every test ends its children."""
    worker = WorkerProcess(tmp_path_factory.mktemp("parent") / "worker.log", "decode")
    worker.ask("preload", 120, implementations=["chunk_attn", "no such implementation"])
    yield worker
    worker.kill()


def test_children_measure_one_after_the_other(parent: WorkerProcess) -> None:
    pids = set()
    for _ in range(3):
        child = parent.fork()
        pids.add(child.pid)
        assert child.ask("survey", 60, implementations=["chunk_attn"], device="cpu")["chunk_attn"]["ok"]
        child.ask("open", 60, point=POINT, seed=0, probe_bytes=0)
        child.ask("prepare", 60, implementation="chunk_attn", needs=1 << 20)
        assert child.ask("check", 60, implementation="chunk_attn", steps=2, nonce=1)["max_error"] < 1e-5
        round_ = child.ask("round", 60, implementation="chunk_attn", timed=[1, 2], nonce=1, cold=True, warm_up=False)
        assert round_["calibration"]["arithmetic_us"] > 0
        assert round_["calibration"]["memory_us"] > 0
        child.kill()
        assert not psutil.pid_exists(child.pid)
    assert len(pids) == 3
    assert parent.ask("hello", 10)["pid"] == parent.pid


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shares memory by a path of a process")
@pytest.mark.parametrize("shared", [True, False])
def test_children_sweep_the_shared_memory_if_there_is_some(
    start_worker: Callable[..., WorkerProcess], shared: bool
) -> None:
    parent = start_worker("chunk_attn")  # which maps the memory
    with sweep_file() as path:
        assert Path(path).stat().st_size == sweep_bytes("cpu", last_level_cache_bytes("cpu"))
        parent.ask("warm", 60, seed=0, dtype="float32", device="cpu", sweep_file=path if shared else "")
        child = parent.fork()
        child.ask("open", 60, point=POINT, seed=0, probe_bytes=0)
        child.ask("prepare", 60, implementation="chunk_attn", needs=1 << 20)
        round_ = child.ask("round", 60, implementation="chunk_attn", timed=[1, 2], nonce=1, cold=True, warm_up=False)
        assert round_["calibration"]["memory_us"] > 0
        maps = Path(f"/proc/{child.pid}/maps").read_text()
        assert ("memfd:chunkbench-sweep" in maps) is shared
    assert not Path(path).exists()


def test_a_childs_death_is_reported_and_its_parent_continues(parent: WorkerProcess) -> None:
    child = parent.fork()
    os.kill(child.pid, signal.SIGSEGV)
    with pytest.raises(WorkerCrashed, match="SIGSEGV"):
        child.ask("hello", 30)
    with pytest.raises(WorkerCrashed, match="has ended"):
        child.ask("hello", 30)
    child.kill()
    second = parent.fork()
    assert second.pid not in (child.pid, parent.pid)
    assert second.ask("hello", 30)["pid"] == second.pid
    second.kill()


def test_a_child_that_hangs_is_killed(parent: WorkerProcess) -> None:
    child = parent.fork()
    os.kill(child.pid, signal.SIGSTOP)
    with pytest.raises(WorkerTimeout):
        child.ask("hello", 0.3)
    assert not psutil.pid_exists(child.pid)
    assert parent.ask("hello", 30)["pid"] == parent.pid


def test_a_reply_says_that_the_worker_was_suspended(parent: WorkerProcess) -> None:
    child = parent.fork()
    child.ask("open", 60, point=POINT, seed=0, probe_bytes=0)
    child.ask("prepare", 60, implementation="chunk_attn", needs=1 << 20)
    check: dict[str, Any] = {"implementation": "chunk_attn", "steps": 1, "nonce": 1}
    assert "suspended" not in child.ask("check", 60, **check)

    def suspend() -> None:
        for number in (signal.SIGSTOP, signal.SIGCONT) * 20:
            os.kill(child.pid, number)
            sleep(0.002)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(suspend)
        replies = [child.ask("check", 60, **check)]
        while not done.done():
            replies.append(child.ask("check", 60, **check))
    child.kill()
    assert any(reply.get("suspended") for reply in replies)


def test_a_time_limit_does_not_count_a_suspension_of_the_runner(
    parent: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock jumps by an hour while the runner waits, as it does when the runner was stopped."""
    times = itertools.count(0, 3600)
    monkeypatch.setattr(client, "monotonic", lambda: next(times))
    assert parent.ask("hello", 30)["pid"] == parent.pid


def test_a_worker_that_the_kernel_kills_for_memory_is_out_of_memory(
    parent: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kills, status in ((0, "crashed"), (1, "oom")):
        child, counts = parent.fork(), iter([0, kills, kills])
        monkeypatch.setattr(client, "oom_kills", counts.__next__)
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(WorkerCrashed) as raised:
            child.ask("hello", 30)
        assert raised.value.status == status
        monkeypatch.undo()


def test_a_child_does_not_outlive_its_parent(parent: WorkerProcess) -> None:
    child = psutil.Process(parent.fork().pid)
    parent.kill()
    child.wait(10)
