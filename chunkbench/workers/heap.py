"""The worker's heap: reserved once, kept when it is freed, given back only when room is short.

On a virtual machine the first touch of a page can cost seconds per gigabyte, less than half of that where two threads
have the kernel populate whole ranges, a fifth where its mapping stayed, and nothing where it was kept.
"""

from __future__ import annotations

import ctypes
import platform
from concurrent.futures import ThreadPoolExecutor
from random import SystemRandom

from chunkbench.environment import available_memory

KEEP_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 50)}
"""Environment of a worker: has glibc keep what is freed, large blocks included."""
_ALL = 1 << 62
_PAGE, _PIECE, _HOLE = 4096, 1 << 28, 1 << 20
_MADV_POPULATE_WRITE = 23
_LINE, _LINES = 64, 1 << 14


class _Statistics(ctypes.Structure):
    """`struct mallinfo2` of glibc: free bytes in all, and those of the free block at the heap's end."""

    _fields_ = [(name, ctypes.c_size_t) for name in (*"abcdefgh", "free", "end")]


def reserve(size: int, threads: int) -> None:
    """Grow the heap by one free block of `size` bytes, touched. Does nothing without glibc."""
    libc = _glibc()
    if libc is None or size <= 0:
        return
    hole = libc.malloc(_HOLE)
    block = libc.malloc(size)
    libc.free(hole)  # takes what the threads allocate: behind the block it would part the block from the heap's end
    if not block:
        return

    def touch(start: int) -> None:
        length = min(_PIECE, size - start)
        if libc.madvise(block + start, length, _MADV_POPULATE_WRITE):  # Linux before 5.14
            ctypes.memset(block + start, 1, length)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(touch, range(-block % _PAGE, size, _PIECE)))
    libc.free(block)


def make_room(size: int, margin: int) -> None:
    """Give freed pages back until `size` bytes of large blocks can be allocated with `margin` bytes left.

    Blocks go into a hole of the heap that takes them, otherwise to its end. Does nothing without glibc.
    """
    libc = _glibc()
    if libc is None or _lacking(libc, size) + margin <= 0:
        return
    libc.malloc_trim(_ALL)  # the holes' pages; their mappings stay
    lacking = _lacking(libc, size) + margin
    if lacking > 0:
        libc.malloc_trim(max(0, libc.mallinfo2().end - lacking))


def shift() -> None:
    """Have what is allocated from now on lie elsewhere in its pages, by chance. Does nothing without glibc.

    Forked processes inherit one heap, and with it where in a page every block will begin. That alone makes one kernel
    some percent faster or slower, in all children of a parent alike.
    """
    libc = _glibc()
    if libc is not None:
        libc.sbrk(_LINE * SystemRandom().randrange(_LINES))


def _lacking(libc: ctypes.CDLL, size: int) -> int:
    """Bytes that `size` takes from the system at worst (holes may have lost their pages), less what is available."""
    heap: _Statistics = libc.mallinfo2()
    free, end = int(heap.free), int(heap.end)
    return max(min(size, free - end), size - end) - available_memory()


def _glibc() -> ctypes.CDLL | None:
    if platform.libc_ver()[0] != "glibc":
        return None
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):  # before 2.33
        return None
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.sbrk.restype, libc.sbrk.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.free.argtypes, libc.malloc_trim.argtypes = [ctypes.c_void_p], [ctypes.c_size_t]
    libc.mallinfo2.restype = _Statistics
    return libc
