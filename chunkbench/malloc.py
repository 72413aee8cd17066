"""The memory of the C library's malloc: measures the bytes in use, and gives free memory back. Without glibc the
functions do nothing."""

from __future__ import annotations

import ctypes
import platform
from functools import cache

_M_ARENA_MAX = -8
_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _Statistics(ctypes.Structure):
    """`struct mallinfo2`, in bytes: `uordblks` and `hblkhd` are in use, `fordblks` is free, `keepcost` is free at the
    end of the heap."""

    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS.split()]


@cache
def glibc() -> ctypes.CDLL | None:
    """The library glibc, with the argument types of its memory functions. None for another C library, or glibc before
    2.33."""
    if platform.libc_ver()[0] != "glibc":
        return None
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return None
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.sbrk.restype, libc.sbrk.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.free.argtypes, libc.malloc_trim.argtypes = [ctypes.c_void_p], [ctypes.c_size_t]
    libc.mallinfo2.restype = _Statistics
    return libc


def bytes_in_use() -> int:
    """Bytes that malloc has given out. Takes microseconds.

    Resident memory is not a good measure: it does not grow while libraries use freed memory again.
    """
    libc = glibc()
    if libc is None:
        return 0
    found: _Statistics = libc.mallinfo2()
    return int(found.uordblks + found.hblkhd)


def give_back() -> None:
    """Return free memory to the system, also free memory between blocks in use. Takes milliseconds."""
    libc = glibc()
    if libc is not None:
        libc.malloc_trim(0)


def share_heap() -> None:
    """Let all threads that begin later share one heap. Compilations and large requests leave unused gaps in a heap.
    With a heap for each thread, these gaps add up."""
    libc = glibc()
    if libc is not None:
        libc.mallopt(_M_ARENA_MAX, 1)
