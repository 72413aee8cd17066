"""A program that this process starts, watches and ends: a worker, a rank, a compared server, a command on a node."""

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
    """A program in a session of its own: a Ctrl-C at the terminal must reach this process alone.

    It ends with this process: a polite one by SIGTERM. The others are ours and see to it themselves, by `PARENT`: for a
    polite one Python has to fork this process, which takes longer the more memory it has, and threads may disturb it.
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
        """Start it in a folder; append what it prints to `log`, or its errors alone if input and output are `pipes`."""
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
        """How it ended, in words; empty while it runs."""
        return "" if self.poll() is None else in_words(self.returncode)

    def end(self, patience_s: float = 0.0) -> None:
        """Give it so much time to end, a polite one after SIGTERM; then kill it and all processes that it started."""
        if self._polite:
            with suppress(OSError):  # all have ended
                os.killpg(self.pid, signal.SIGTERM)
        with suppress(TimeoutExpired):
            self.wait(patience_s)
        with suppress(OSError), self:  # which waits, and closes its pipes
            os.killpg(self.pid, signal.SIGKILL)


def in_words(code: int) -> str:
    """How a process with this exit code ended."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
