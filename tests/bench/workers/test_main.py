"""The worker: requests, inputs, pages, heap."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from chunkbench.baselines.registry import REGISTRY
from chunkbench.bench.environment.cpu import asks_for_huge_pages, huge_pages
from chunkbench.bench.experiment.terms import Pages
from chunkbench.bench.runner.client import WorkerProcess
from chunkbench.bench.workers.heap import KEEP_FREED_MEMORY
from chunkbench.bench.workers.inputs import PooledInputs
from chunkbench.bench.workers.main import _reply
from chunkbench.bench.workers.pages import environment, huge_share
from chunkbench.bench.workers.protocol import OUT_OF_MEMORY
from tests.baselines.checked import make_point


class Failing:
    """A worker whose only request raises an error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def check(self) -> None:
        raise self._error


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
    point_inputs = inputs()
    assert point_inputs.prompts[0][:20] == point_inputs.prompts[2][:20]
    assert point_inputs.prompts[0][20:] != point_inputs.prompts[2][20:]
    first, other = point_inputs.keys_values(0, 0, 50)[0], point_inputs.keys_values(2, 0, 50)[0]
    assert torch.equal(first[:20], other[:20])
    assert not (first[20:] == other[20:]).all(dim=(1, 2)).any()


def test_keys_values_of_a_range_equal_that_range_of_the_whole_prompt() -> None:
    point_inputs = inputs()
    k, v = point_inputs.keys_values(1, 0, 50)
    part_k, part_v = point_inputs.keys_values(1, 13, 37)
    assert torch.equal(part_k, k[13:37])
    assert torch.equal(part_v, v[13:37])
    assert not torch.equal(k, v)


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


def test_context_is_the_prompt_followed_by_the_completion_tokens() -> None:
    point_inputs = inputs()
    k, v = point_inputs.context(2, 3)
    assert torch.equal(k[:50], point_inputs.keys_values(2, 0, 50)[0])
    assert torch.equal(k[52], point_inputs.completion(3)[1][2])
    assert torch.equal(v[50], point_inputs.completion(1)[2][2])


def test_capacity_of_ragged_prompts_fits_the_longest() -> None:
    point_inputs = inputs(n_p=(30, 60), batch_size=16)
    lengths = [len(prompt) for prompt in point_inputs.prompts]
    assert min(lengths) >= 30
    assert len(set(lengths)) > 1
    assert point_inputs.capacity == max(lengths) + 4


def test_sequences_share_the_tokens_of_their_common_path() -> None:
    point_inputs = inputs(n_s=None, n_p=40, batch_size=4, tree=((16, ((8, 2), (8, 1))), (24, 1)))
    a, b, c, d = point_inputs.prompts
    assert a[:24] == b[:24]
    assert a[:16] == c[:16]
    assert a[16:24] != c[16:24]
    assert a[:16] != d[:16]


# 64 MB of K and V: much more than what is lost at the ends of the heap's huge pages.
POINT = {
    "n_p": 1024, "n_s": 0, "n_c": 1, "batch_size": 8, "heads": 16, "kv_heads": 16, "head_dim": 64, "chunk_size": 64,
    "block_size": 32, "dtype": "float32", "device": "cpu", "threads": 1,
}  # fmt: skip
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
    worker.ask("open", 60, point=POINT, seed=0, probe_bytes=0)
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
