"""The worker: requests, inputs, pages, heap, children, and its end with the process that started it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import platform
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep
from typing import Any

import psutil
import pytest
import torch

from chunkbench.baselines.registry import REGISTRY
from chunkbench.bench.environment.cpu import asks_for_huge_pages, huge_pages
from chunkbench.bench.experiment.terms import Pages
from chunkbench.bench.measure.caches import last_level_cache_bytes, sweep_bytes, sweep_file
from chunkbench.bench.runner import client
from chunkbench.bench.runner.client import WorkerCrashed, WorkerProcess, WorkerTimeout
from chunkbench.bench.workers.heap import KEEP_FREED_MEMORY
from chunkbench.bench.workers.inputs import PooledInputs
from chunkbench.bench.workers.main import _reply
from chunkbench.bench.workers.pages import environment, huge_share
from chunkbench.bench.workers.protocol import OUT_OF_MEMORY
from tests.baselines.checked import make_point
from tests.waiting import has_ended, wait_until


class Failing:
    """A worker whose only request raises an error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def check(self) -> None:
        raise self._error


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), "oom"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "oom"),
        (OSError(errno.ENOENT, "No such file"), "error"),
        (RuntimeError("std::bad_alloc"), "oom"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), "oom"),
        (RuntimeError("CUDA driver error: out of memory"), "oom"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "oom"),
        (RuntimeError("can't start new thread"), "oom"),
        (RuntimeError("Resource temporarily unavailable"), "oom"),
        (ImportError("lib.so: failed to map segment from shared object"), "oom"),
        (caused(OSError("Could not load: lib.so"), OSError("lib.so: failed to map segment from shared object")), "oom"),
        (caused(RuntimeError("no kernel"), KeyError("lib")), "error"),
        (RuntimeError("no kernel"), "error"),
    ],
)
def test_errors(error: Exception, kind: str) -> None:
    answer = _reply(Failing(error), {"id": 1, "op": "check"})["error"]  # type: ignore[arg-type]
    assert answer["kind"] == kind
    assert answer["message"].startswith(type(error).__name__)


def test_a_worker_that_cannot_answer_for_lack_of_memory_says_so_by_its_exit_code() -> None:
    code = """
from chunkbench import workloads
from chunkbench.bench.workers import main
def fails(*_): raise MemoryError
workloads.register()
main._answer_all = fails
main.main()
"""
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False).returncode == OUT_OF_MEMORY


SHAPE = {"n_p": 50, "n_s": 20, "n_c": 4, "batch_size": 3, "kv_heads": 2, "head_dim": 16}


def inputs(seed: int = 0, **axes: object) -> PooledInputs:
    return PooledInputs(make_point(**SHAPE | axes), seed)


def test_shared_tokens_have_the_same_ids_and_values_and_private_ones_differ() -> None:
    made = inputs()
    assert made.prompts[0][:20] == made.prompts[2][:20]
    assert made.prompts[0][20:] != made.prompts[2][20:]
    first, other = made.keys_values(0, 0, 50)[0], made.keys_values(2, 0, 50)[0]
    assert torch.equal(first[:20], other[:20])
    assert not (first[20:] == other[20:]).all(dim=(1, 2)).any()
    a, b, c, d = inputs(n_s=None, n_p=40, batch_size=4, tree=((16, ((8, 2), (8, 1))), (24, 1))).prompts
    assert a[:24] == b[:24]
    assert a[:16] == c[:16]
    assert a[16:24] != c[16:24]
    assert a[:16] != d[:16]


def test_the_seed_determines_all_inputs() -> None:
    first, same, other = inputs(7), inputs(7), inputs(8)
    assert first.prompts == same.prompts != other.prompts
    assert torch.equal(first.keys_values(0, 0, 50)[0], same.keys_values(0, 0, 50)[0])
    assert not torch.equal(first.keys_values(0, 0, 50)[0], other.keys_values(0, 0, 50)[0])
    assert torch.equal(first.queries(3, 1), same.queries(3, 1))
    assert not torch.equal(first.queries(3, 1), first.queries(3, 2))


def test_values_are_standard_normal() -> None:
    k, v = inputs(n_p=4000, n_s=0).keys_values(0, 0, 4000)
    for values in (k, v, inputs(batch_size=64).queries(1)):
        assert abs(values.mean()) < 0.05
        assert abs(values.std() - 1) < 0.05


# 64 MB of K and V: much more than what is lost at the ends of the heap's huge pages.
POINT = make_point(n_p=1024, n_s=0, n_c=1, batch_size=8, heads=16, kv_heads=16, block_size=32, threads=1)
SMAPS = """\
55d000000000-55d000400000 rw-p 00000000 00:00 0                          [heap]
Size:               4096 kB
Rss:                4096 kB
AnonHugePages:      2048 kB
VmFlags: rd wr mr mw me ac hg
7f0000000000-7f0000200000 rw-p 00000000 00:00 0
Rss:                2048 kB
AnonHugePages:      2048 kB
7f0000200000-7f0000300000 r--p 00000000 08:01 1234                       /usr/lib/libc.so.6
Rss:                1024 kB
AnonHugePages:         0 kB
"""


def test_the_share_is_that_of_the_mappings_that_hold_the_blocks(tmp_path: Path) -> None:
    smaps = tmp_path / "smaps"
    smaps.write_text(SMAPS)
    assert huge_share([(0x55D000100000, 4096)], smaps) == 0.5
    assert huge_share([(0x55D000100000, 4096), (0x7F0000000000, 1)], smaps) == pytest.approx(4 / 6)
    assert huge_share([(0x7F0000200000, 8)], smaps) == 0
    assert huge_share([(0x1000, 8)], smaps) is None
    assert huge_share([(0x7F0000000000, 0)], smaps) is None
    assert huge_share([(0x7F0000000000, 1)], tmp_path / "missing") is None


def test_the_users_own_tunables_of_glibc_are_kept() -> None:
    given = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=2:glibc.malloc.arena_max=1"}
    assert environment("huge", given)["GLIBC_TUNABLES"] == "glibc.malloc.arena_max=1:glibc.malloc.hugetlb=1"
    assert environment("small", {})["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=0"


GRANTED = huge_pages() == "always" or (huge_pages() == "madvise" and asks_for_huge_pages())


@pytest.mark.skipif(not GRANTED, reason="no program gets huge pages here")
@pytest.mark.parametrize("pages", ["huge", "small"])
def test_every_implementation_gets_the_same_pages(pages: Pages, start_worker: Callable[..., WorkerProcess]) -> None:
    """PyTorch's buffers, vLLM's and our own: smaps says what the system granted."""
    few = ["naive", "chunk_attn", "paged_attn"]
    names = few if pages == "small" else [name for name in REGISTRY.names() if REGISTRY.availability(name, "cpu")[1].ok]
    worker = start_worker(pages=pages)
    worker.ask("open", 60, point=POINT.as_json(), seed=0, probe_bytes=0)
    shares = {}
    for name in names:
        if worker.ask("supports", 60, implementation=name)["ok"]:
            worker.ask("prepare", 60, implementation=name, needs=1 << 26)
            shares[name] = worker.ask("check", 60, implementation=name, steps=1, nonce=1)["huge_share"]
    visible = {name: share for name, share in shares.items() if share is not None}
    assert {*few} <= set(visible)
    if pages == "small":
        assert set(visible.values()) == {0.0}
    else:
        assert min(visible.values()) > 0.85, visible


SCRIPT = """
import ctypes, psutil
from unittest import mock
from chunkbench.bench.workers import heap

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
resident = lambda: psutil.Process().memory_info().rss >> 20

def block(megabytes):
    address = libc.malloc(megabytes << 20)
    ctypes.memset(address, 1, megabytes << 20)
    return address

# Small allocations use this hole. In the reserved memory they would lie between a block and the heap's end.
small, guard = libc.malloc(1 << 19), libc.malloc(1 << 19)
before = resident()
heap.reserve(510 << 20, 2)
reserved = resident() - before
libc.free(small)
hole, wall, end = block(300), block(1), block(200)
grown = resident() - before - reserved
libc.free(hole), libc.free(end)
used = resident()

def returned(size, available):
    with mock.patch.object(heap, "available_memory", available):
        heap.make_room(size << 20, 50 << 20)
    return used - resident()

print(
    reserved,
    grown,
    returned(150, lambda: 200 << 20),
    returned(150, iter([0, 200 << 20]).__next__),
    returned(150, lambda: 100 << 20),
    ctypes.string_at(wall, 1)[0],
)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_memory_is_reserved_and_kept_and_only_missing_room_is_returned() -> None:
    """Frees 300 of 501 MB in the middle of the heap and 200 MB at its end; then asks for 150 MB plus 50 MB margin."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**os.environ, **KEEP_FREED_MEMORY}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    reserved, grown, enough, hole, hole_and_part_of_end, wall = map(int, done.stdout.split())
    assert reserved == pytest.approx(510, abs=15)
    assert grown == pytest.approx(0, abs=15)
    assert enough == pytest.approx(0, abs=15)
    assert hole == pytest.approx(300, abs=15)
    assert hole_and_part_of_end == pytest.approx(400, abs=15)
    assert wall == 1


FORK_POINT = make_point(n_p=40, n_s=32, n_c=2, batch_size=2, heads=2, kv_heads=2, head_dim=32, threads=1)


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    """A worker that computes nothing; every test ends its children."""
    worker = WorkerProcess(tmp_path_factory.mktemp("parent") / "worker.log", "decode")
    worker.ask("preload", 120, implementations=["chunk_attn", "no such implementation"])
    yield worker
    worker.kill()


def prepare(child: WorkerProcess) -> None:
    child.ask("open", 60, point=FORK_POINT.as_json(), seed=0, probe_bytes=0)
    child.ask("prepare", 60, implementation="chunk_attn", needs=1 << 20)


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
        prepare(child)
        round_ = child.ask("round", 60, implementation="chunk_attn", timed=[1, 2], nonce=1, cold=True, warm_up=False)
        assert round_["calibration"]["memory_us"] > 0
        maps = Path(f"/proc/{child.pid}/maps").read_text()
        assert ("memfd:chunkbench-sweep" in maps) is shared
    assert not Path(path).exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shares memory by a path of a process")
def test_without_memory_to_share_there_is_no_path() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        with sweep_file() as path:
            assert path == ""
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


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
    prepare(child)
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


@pytest.mark.parametrize(("kills", "status"), [(0, "crashed"), (1, "oom")])
def test_a_worker_that_the_kernel_kills_for_memory_is_out_of_memory(
    parent: WorkerProcess, kills: int, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    child, counts = parent.fork(), iter([0, kills, kills])
    monkeypatch.setattr(client, "oom_kills", counts.__next__)
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(WorkerCrashed) as raised:
        child.ask("hello", 30)
    assert raised.value.status == status


def test_a_child_does_not_outlive_its_parent(parent: WorkerProcess) -> None:
    child = psutil.Process(parent.fork().pid)
    parent.kill()
    child.wait(10)


DRIVER = """
import os, sys
from pathlib import Path
from chunkbench.bench.runner.client import WorkerProcess

folder = Path(sys.argv[1])
path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
WorkerProcess(folder / "worker.log", "decode", environment={**os.environ, "PYTHONPATH": path})
"""
IMPORT_WITHOUT_END = """
import time
from pathlib import Path

Path(__file__).with_name("importing").touch()
time.sleep(60)
"""
"""Takes torch's place in the worker: an import that does not end, so only the kernel can end the worker."""


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[psutil.Process]:
    """A process that starts a worker and waits for its first reply."""
    (tmp_path / "torch.py").write_text(IMPORT_WITHOUT_END)
    process = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)])
    yield psutil.Process(process.pid)
    process.kill()
    process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can end a process with its parent")
@pytest.mark.parametrize("importing", [False, True], ids=["at once", "while torch is imported"])
def test_a_worker_ends_when_its_driver_is_killed(driver: psutil.Process, importing: bool, tmp_path: Path) -> None:
    wait_until(lambda: bool(driver.children()))
    (worker,) = driver.children()
    try:
        wait_until(lambda: not importing or (tmp_path / "importing").exists())
        driver.kill()
        wait_until(lambda: has_ended(worker.pid), 10)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()
