"""The library `harm.cpp`, compiled: preloaded into processes whose allocations fail, whose clock is set, ..."""

from __future__ import annotations

import atexit
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tests.torture.trials import Unavailable

SOURCE = Path(__file__).with_name("harm.cpp")


@cache
def library() -> Path:
    """Compiled once in a process. Raises Unavailable."""
    compiler = shutil.which("g++")
    if compiler is None or os.uname().sysname != "Linux":
        raise Unavailable("a C++ compiler on Linux: apt-get install g++")
    folder, owner = Path(tempfile.mkdtemp(prefix="torture-harm-")), os.getpid()
    made = folder / "harm.so"
    command = [compiler, "-O0", "-shared", "-fPIC", "-std=c++17", str(SOURCE), "-o", str(made), "-ldl"]
    subprocess.run(command, check=True)
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    return made


class Page:
    """The numbers that preloaded processes read. See `harm.cpp`."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(mmap.PAGESIZE))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    def clock(self, seconds: int) -> None:
        """Move the wall clock so far from the real one."""
        struct.pack_into("q", self._map, 0, seconds)

    def fail(self, native: bool, least: int, until: int) -> None:
        """Let one allocation fail; with 0, none."""
        struct.pack_into("qqqq", self._map, 8, native, least, until, 0)

    @property
    def failed(self) -> int:
        number: int = struct.unpack_from("q", self._map, 32)[0]
        return number
