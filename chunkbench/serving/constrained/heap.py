"""Memory of the C library, which compiled constraints fill: how much is in use; what is free goes to the system."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

_M_ARENA_MAX = -8
_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS.split()]


@cache
def _function(name: str) -> Any:
    """A function of glibc; None in another C library or an older one."""
    return getattr(ctypes.CDLL(None), name, None)


def heap_bytes() -> int:
    """Bytes that malloc has given out. Takes microseconds. 0 without glibc 2.33 or later.

    The resident memory says less: libraries take freed memory again, and it does not grow.
    """
    function = _function("mallinfo2")
    if function is None:
        return 0
    function.restype = _Mallinfo2
    found = function()
    return int(found.uordblks + found.hblkhd)


def give_back() -> None:
    """Return free memory to the system, also from between pieces in use. Takes milliseconds; nothing without glibc."""
    function = _function("malloc_trim")
    if function is not None:
        function(0)


def share_heap() -> None:
    """Let all threads that begin later share one heap. With one each, the holes that long compilations and large bodies
    leave add up."""
    function = _function("mallopt")
    if function is not None:
        function(_M_ARENA_MAX, 1)
