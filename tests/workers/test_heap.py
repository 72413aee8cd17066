from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from chunkbench.workers.heap import KEEP_FREED_MEMORY

SCRIPT = """
import ctypes, psutil
from unittest import mock
from chunkbench.workers import heap

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
resident = lambda: psutil.Process().memory_info().rss >> 20

def block(megabytes):
    address = libc.malloc(megabytes << 20)
    ctypes.memset(address, 1, megabytes << 20)
    return address

# Small allocations take this hole. In the reserved memory they would lie between a block and the heap's end.
small, guard = libc.malloc(1 << 19), libc.malloc(1 << 19)
before = resident()
heap.reserve(510 << 20, 2)
reserved = resident() - before
libc.free(small)
hole, wall, end = block(300), block(1), block(200)
grown = resident() - before - reserved
libc.free(hole), libc.free(end)
used = resident()

def given_back(size, available):
    with mock.patch.object(heap, "available_memory", available):
        heap.make_room(size << 20, 50 << 20)
    return used - resident()

print(
    reserved,
    grown,
    given_back(150, lambda: 200 << 20),
    given_back(150, iter([0, 200 << 20]).__next__),
    given_back(150, lambda: 100 << 20),
    ctypes.string_at(wall, 1)[0],
)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the heap is glibc's")
def test_memory_is_reserved_kept_and_given_back_as_far_as_room_is_short() -> None:
    """Of 501 MB, 300 are freed in the middle of the heap and 200 at its end; then 150 and 50 to spare are wanted."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**os.environ, **KEEP_FREED_MEMORY}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    reserved, grown, enough, hole, hole_and_some_of_the_end, wall = map(int, done.stdout.split())
    assert reserved == pytest.approx(510, abs=15)
    assert grown == pytest.approx(0, abs=15)
    assert enough == pytest.approx(0, abs=15)
    assert hole == pytest.approx(300, abs=15)
    assert hole_and_some_of_the_end == pytest.approx(400, abs=15)
    assert wall == 1
