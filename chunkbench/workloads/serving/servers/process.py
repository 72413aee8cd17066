"""Starts the process of a server, waits until it answers, and ends it with all processes that it started."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from chunkbench.bench.child import ChildProcess
from chunkbench.traffic.load import LoadError, ServerTarget, describe_server
from chunkbench.workloads.serving.servers.system import ServerFailed, Setting, System, Watch

POLL_S = 0.2
SERVER_LOG = "server.log"
STOP_S = 20.0
"""Seconds that a server has between SIGTERM and SIGKILL."""


class RunningServer:
    """A server that answers requests. Made by `start_server`."""

    def __init__(self, process: ChildProcess | None, target: ServerTarget, watch: Watch, log: Path) -> None:
        self.target = target
        self.watch = watch
        self.log = log
        """File with the server's output."""
        self._process = process

    @property
    def died(self) -> str:
        """Why the server ended. Empty while it runs."""
        return _death(self._process, self.log)

    def begin(self) -> None:
        """Begin to record what the server does, and its peak memory."""
        self.watch.begin()
        for process in self._processes():
            with suppress(OSError):  # it has just ended, or this system does not allow it: then the peak is older
                Path(f"/proc/{process.pid}/clear_refs").write_text("5")

    def peak_bytes(self) -> int | None:
        """Largest resident memory of each process of the server since `begin`, summed. None if the server runs
        elsewhere or has ended."""
        found = 0
        for process in self._processes():
            with suppress(OSError):
                status = Path(f"/proc/{process.pid}/status").read_text().split()
                if "VmHWM:" in status:
                    found += int(status[status.index("VmHWM:") + 1]) * 1024
        return found or None

    def _processes(self) -> list[psutil.Process]:
        if self._process is None:
            return []
        try:
            first = psutil.Process(self._process.pid)
            return [first, *first.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def stop(self) -> None:
        """End the server and all processes that it started."""
        self.watch.close()
        if self._process is not None:
            self._process.end(STOP_S)


def start_server(
    system: System, setting: Setting, folder: Path, environment: Mapping[str, str] | None = None
) -> RunningServer:
    """Start the server of a system, and wait until it answers. If that fails, everything is ended, and ServerFailed is
    raised.

    `environment`: environment variables for the servers of all systems.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / SERVER_LOG
    port = free_port()
    launch = system.launch(setting, folder, port)
    url = system.url(setting, port)
    process = None
    if launch is not None:
        variables = {**os.environ, **(environment or {}), **launch.environment}
        process = ChildProcess(launch.command, variables, log, polite=True)
    try:
        target = _wait(url, process, system.ready_s, log)
        return RunningServer(process, target, system.watch(url, setting, folder), log)
    except BaseException:
        if process is not None:
            process.end(STOP_S)
        raise


def free_port() -> int:
    """A port on 127.0.0.1 that no program uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def last_words(log: Path) -> str:
    """The last lines of a log, for an error message."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return "the server wrote no log"
    said = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(said[-3:])[-600:] or "the server wrote nothing"


def _death(process: ChildProcess | None, log: Path) -> str:
    """How a server ended, with the last lines that it printed; empty while it runs."""
    return f"the server {process.ended}: {last_words(log)}" if process is not None and process.ended else ""


def _wait(url: str, process: ChildProcess | None, limit_s: float, log: Path) -> ServerTarget:
    end = time.monotonic() + limit_s
    while True:
        try:
            return asyncio.run(describe_server(url, timeout_s=max(1.0, end - time.monotonic())))
        except LoadError as error:
            if process is None:
                raise ServerFailed(str(error)) from None
        if death := _death(process, log):
            raise ServerFailed(death)
        if time.monotonic() > end:
            raise ServerFailed(f"the server did not answer within {limit_s:g} s: {last_words(log)}")
        time.sleep(POLL_S)
