"""Memory that the C library has given to this process and not got back."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS.split()]


@cache
def _mallinfo2() -> Any:
    function = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if function is not None:
        function.restype = _Mallinfo2
    return function


def heap_bytes() -> int:
    """Bytes that malloc has given out. Takes microseconds. 0 without glibc 2.33 or later.

    The resident memory says less: libraries take freed memory again, and it does not grow.
    """
    function = _mallinfo2()
    if function is None:
        return 0
    found = function()
    return int(found.uordblks + found.hblkhd)
