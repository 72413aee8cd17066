"""The library `harm.cpp`, compiled: preloaded into processes whose allocations fail, whose clock is set, ..."""

from __future__ import annotations

import atexit
import os
import shutil
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
