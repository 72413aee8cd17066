"""Starts, watches and ends another program, such as a worker, a rank, a server or a command on a node."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired

from chunkbench.lifetime import PARENT, end_with_parent


class ChildProcess(Popen[bytes]):
    """A child program in a session of its own, so that Ctrl-C at the terminal reaches only the parent.

    The environment variable `PARENT` holds the process id of the parent. ChunkBench's programs read the variable and
    end when the parent ends. Any other program has to be `polite`: Linux then sends SIGTERM to the program when the
    parent ends. To start a polite program, Python has to fork. A fork is slow if the parent has much memory, and less
    safe if the parent has threads.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path | None,
        *,
        pipes: bool = False,
        polite: bool = False,
        folder: Path | None = None,
    ) -> None:
        """Start the program in `folder`. Append its output and errors to `log`.

        With `pipes`, standard input and output are pipes, and `log` gets only the errors.
        """
        self._polite = polite
        with open(log or os.devnull, "ab") as output:
            super().__init__(
                command,
                stdin=PIPE if pipes else DEVNULL,
                stdout=PIPE if pipes else output,
                stderr=output,
                cwd=folder,
                env={**environment, PARENT: str(os.getpid())},
                start_new_session=True,
                preexec_fn=partial(end_with_parent, os.getpid(), signal.SIGTERM) if polite else None,
            )

    @property
    def ended(self) -> str:
        """How the program ended, such as `exited with code 1`; empty while it runs."""
        return "" if self.poll() is None else in_words(self.returncode)

    def end(self, patience_s: float = 0.0) -> None:
        """Wait at most `patience_s` seconds, then kill the program and its child processes. A polite program first gets
        SIGTERM."""
        if self._polite:
            with suppress(OSError):  # all have ended
                os.killpg(self.pid, signal.SIGTERM)
        with suppress(TimeoutExpired):
            self.wait(patience_s)
        with suppress(OSError), self:  # `with self` waits, and closes the pipes
            os.killpg(self.pid, signal.SIGKILL)


def in_words(code: int) -> str:
    """Describe how a process with this exit code ended."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
