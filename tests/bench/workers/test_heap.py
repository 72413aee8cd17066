from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from chunkbench.bench.workers.heap import KEEP_FREED_MEMORY

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
