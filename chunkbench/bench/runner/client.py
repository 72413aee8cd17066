"""The runner's side of a worker: start it, send requests, kill it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Literal

import psutil

from chunkbench.bench.child import ChildProcess, in_words
from chunkbench.bench.environment.memory import oom_kills
from chunkbench.bench.experiment.terms import Pages
from chunkbench.bench.workers import pages as memory_pages
from chunkbench.bench.workers.heap import KEEP_FREED_MEMORY
from chunkbench.bench.workers.protocol import OUT_OF_MEMORY, PROTOCOL

_START_LIMIT_S = 120.0
_FORK_LIMIT_S = 30.0
_LONGEST_WAIT_S = 0.5
"""If a wait takes more seconds than this, the runner itself was suspended. Time limits do not count such a wait."""


class WorkerError(RuntimeError):
    """The worker answered with an error.

    `kind`: `error`, `oom`, `unsupported` or `lost`. `unsupported`: no graph can capture the call. `lost`: an error has
    destroyed the GPU's context, so this worker can compute nothing more.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class WorkerCrashed(RuntimeError):
    """The worker died during a request. `status` is `oom` if the kernel killed it to get memory."""

    def __init__(self, message: str, status: Literal["crashed", "oom"] = "crashed") -> None:
        super().__init__(message)
        self.status: Literal["crashed", "oom"] = status


class WorkerTimeout(RuntimeError):
    """The worker did not answer in time and was killed."""


LOST = (WorkerError, WorkerCrashed, WorkerTimeout)
"""All exceptions that `WorkerClient.ask` raises."""


class WorkerClient(ABC):
    """A worker that answers requests. Only one thread may use it."""

    @property
    @abstractmethod
    def pid(self) -> int: ...

    @abstractmethod
    def ask(self, op: str, limit_s: float, **arguments: Any) -> dict[str, Any]:
        """Send one request and wait for its reply.

        Raises `WorkerError` if the worker answers with an error, `WorkerCrashed` if it dies, and `WorkerTimeout` after
        `limit_s` seconds.
        """

    @abstractmethod
    def kill(self) -> None:
        """Kill the worker and all processes that it started."""

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that the worker holds, including memory that it keeps for the next point. 0 if it has
        ended."""
        try:
            resident: int = psutil.Process(self.pid).memory_info().rss
        except psutil.Error:
            return 0  # the next request reports how it died
        return resident


class WorkerProcess(WorkerClient):
    """A worker that runs as a program of its own."""

    def __init__(
        self,
        log: Path,
        kind: str,
        pages: Pages = "huge",
        command: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start a worker for a kind of work. Append its standard error to `log`.

        `pages`: huge or small memory pages. `command`: the program to start instead of `chunkbench.worker`.
        `environment`: the variables to use instead of this process's variables. The worker does not import packages
        from the current folder, because a checkout in this folder may have another revision.
        """
        self._log = log
        variables = environment or os.environ
        settings = {**KEEP_FREED_MEMORY, **memory_pages.environment(pages, variables), "PYTHONSAFEPATH": "1"}
        program = command or (sys.executable, "-m", "chunkbench.worker")
        self._process = ChildProcess([*program, kind], {**variables, **settings}, log, pipes=True)
        self._buffer = b""
        self._next = 0
        try:
            hello = self.ask("hello", _START_LIMIT_S)
        except BaseException:  # Ctrl-C included
            self.kill()
            raise
        self.package = Path(hello.get("package", ""))
        """Folder of the worker's own revision of this package."""
        if hello["protocol"] != PROTOCOL:
            self.kill()
            raise WorkerError(
                "error", f"the worker has protocol version {hello['protocol']}, this runner has {PROTOCOL}"
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, op: str, limit_s: float, **arguments: Any) -> dict[str, Any]:
        self.send(op, arguments)
        try:
            return self.receive(limit_s)
        except WorkerTimeout:
            self.kill()
            raise

    def send(self, op: str, arguments: Mapping[str, Any], child: int | None = None) -> None:
        """Send one request to the worker or to its forked child. Raises `WorkerCrashed` if the pipe is closed."""
        self._next += 1
        self._oom_kills = oom_kills()
        request = json.dumps({"id": self._next, "op": op, "arguments": arguments, "child": child}) + "\n"
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(request.encode())
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):  # closed by the other end, or by `kill`
            raise self._crash() from None

    def receive(self, limit_s: float) -> dict[str, Any]:
        """Wait for one reply. Raises the exceptions of `ask`. After a timeout the caller must kill the worker."""
        reply = json.loads(self._read_line(limit_s))
        # Skip replies to earlier requests, whose child died before it read them.
        while "ended" not in reply and reply["id"] != self._next:
            reply = json.loads(self._read_line(limit_s))
        if "ended" in reply:
            raise self._crash(reply["ended"])
        if "error" in reply:
            raise WorkerError(reply["error"]["kind"], reply["error"]["message"])
        result: dict[str, Any] = reply["ok"]
        return result

    def fork(self) -> ForkedWorker:
        """Fork a child of this worker. The child starts at once, with everything imported, and has its own memory.

        Only one child may live at a time. Meanwhile this worker answers no other request. Fork only a worker that has
        computed nothing yet, because the threads of a computation do not survive a fork.
        """
        return ForkedWorker(self)

    def kill(self) -> None:
        self._process.end()

    def _read_line(self, limit_s: float) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        left_s = limit_s
        while b"\n" not in self._buffer:
            began = monotonic()
            ready, _, _ = select.select([descriptor], [], [], max(0.0, min(left_s, _LONGEST_WAIT_S)))
            left_s -= min(monotonic() - began, _LONGEST_WAIT_S)
            if ready:
                chunk = os.read(descriptor, 1 << 16)
                if not chunk:
                    raise self._crash()
                self._buffer += chunk
            if left_s <= 0 and b"\n" not in self._buffer:
                raise WorkerTimeout(f"no answer within {limit_s:.0f} s")
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line

    def _crash(self, code: int | None = None) -> WorkerCrashed:
        """The error that says how the worker ended."""
        code = self._process.wait() if code is None else code
        if code == OUT_OF_MEMORY:
            return WorkerCrashed("memory ran out between two requests", "oom")
        if -code == signal.SIGKILL and oom_kills() > self._oom_kills:
            return WorkerCrashed("the system ran out of memory and killed the process", "oom")
        where = f"; see {self._log.name} in the run directory" if code >= 0 else ""
        return WorkerCrashed(f"the process {in_words(code)}{where}")


class ForkedWorker(WorkerClient):
    """A child of a worker, reached through the pipes of its parent. When the child dies or hangs, the parent
    continues."""

    def __init__(self, parent: WorkerProcess) -> None:
        self._parent = parent
        self._ended = False
        self._pid: int = parent.ask("fork", _FORK_LIMIT_S)["pid"]

    @property
    def pid(self) -> int:
        return self._pid

    def ask(self, op: str, limit_s: float, **arguments: Any) -> dict[str, Any]:
        if self._ended:
            raise WorkerCrashed("the process has ended")
        self._parent.send(op, arguments, self._pid)
        try:
            return self._parent.receive(limit_s)
        except WorkerTimeout:
            self.kill()
            raise
        except WorkerCrashed:
            self._ended = True
            raise

    def kill(self) -> None:
        if self._ended:
            return
        self._ended = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        while True:  # a reply may still arrive before the parent's report that the child ended
            try:
                self._parent.receive(_FORK_LIMIT_S)
            except WorkerError:
                continue
            except (WorkerCrashed, WorkerTimeout):
                return
