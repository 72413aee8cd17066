"""The hardware and software of a run, without anything that identifies its owner."""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import re
import socket
from typing import Any

from pydantic import BaseModel, ConfigDict

from chunkbench.bench.environment.cpu import Cpu, huge_pages, read_cpu
from chunkbench.bench.environment.memory import memory_limit, total_memory
from chunkbench.bench.environment.software import (
    Gpu,
    Native,
    Torch,
    installed_version,
    optional_packages,
    read_gpus,
    read_native,
    read_torch,
)


class Environment(BaseModel):
    """Hardware and software of one machine. Holds no host name, user name or path."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpu: Cpu
    memory_bytes: int
    memory_limit_bytes: int | None
    """Memory limit of the control group; None without a limit."""
    huge_pages: str | None
    """Transparent huge pages: always, madvise or never."""
    gpus: tuple[Gpu, ...]
    os: str
    kernel: str
    python: str
    torch: Torch
    numpy: str | None
    packages: dict[str, str]
    """Optional packages that are installed, with their versions."""
    native: Native
    variables: dict[str, str]
    """Environment variables that are set and change speed."""


SPEED_VARIABLES = (
    *("OMP_NUM_THREADS", "OMP_DYNAMIC", "OMP_WAIT_POLICY", "OMP_SCHEDULE", "OMP_THREAD_LIMIT", "GOMP_SPINCOUNT"),
    *("MKL_NUM_THREADS", "MKL_DYNAMIC", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE", "OPENBLAS_NUM_THREADS"),
    *("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_CONF"),
    *("KMP_BLOCKTIME", "MALLOC_ARENA_MAX", "CUDA_LAUNCH_BLOCKING"),
)


def read_environment() -> Environment:
    """The environment of this machine. Imports torch, and raises ImportError if torch is not installed."""
    cpu = read_cpu()
    return Environment(
        cpu=cpu,
        memory_bytes=total_memory(),
        memory_limit_bytes=memory_limit(),
        huge_pages=huge_pages(),
        gpus=read_gpus(),
        os=_os_name(),
        kernel=f"{platform.system()} {scrub(platform.release())}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        torch=read_torch(cpu.vendor),
        numpy=installed_version("numpy"),
        packages=optional_packages(),
        native=_scrubbed_native(),
        variables={name: scrub(os.environ[name]) for name in SPEED_VARIABLES if os.environ.get(name)},
    )


def fingerprint() -> dict[str, Any]:
    """`read_environment()` as plain JSON values."""
    return read_environment().model_dump(mode="json")


def scrub(text: str) -> str:
    """The text with placeholders for host name, user name, home folder and absolute paths."""
    home = os.path.expanduser("~").rstrip("/")
    if len(home) > 1:  # a shorter path is the root, or there is no home
        text = re.sub(rf"{re.escape(home)}(?![\w.-])", "<home>", text)
    text = re.sub(r"(?<![\w<])(/[\w.+@-]+){2,}", "<path>", text)
    for name in sorted(_names(), key=len, reverse=True):
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", "<name>", text, flags=re.IGNORECASE)
    return text


def _names() -> set[str]:
    host = socket.gethostname()
    names = {host, host.partition(".")[0]}
    # In many containers the user id has no entry in the password file, so there is no name to hide.
    with contextlib.suppress(KeyError, OSError):
        names.add(getpass.getuser())
    return names - {""}


def _os_name() -> str:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return f"{platform.system()} {platform.mac_ver()[0]}".strip()
    return release.get("PRETTY_NAME") or release["NAME"]


def _scrubbed_native() -> Native:
    # If the module does not load, the reason names a library with its path.
    native = read_native()
    return native.model_copy(update={"reason": scrub(native.reason)})
