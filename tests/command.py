"""The command `chunkbench` in the process of the test, as its script calls it; and git."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from chunkbench.bench.environment.revision import git_environment
from chunkbench.cli.main import main


class Done(NamedTuple):
    """What a command printed, and its exit code."""

    code: object
    stdout: str
    stderr: str


def chunkbench(*words: str, encoding: str = "utf-8") -> Done:
    """Run a command. Only SystemExit is caught."""
    out, err = io.TextIOWrapper(io.BytesIO(), encoding), io.TextIOWrapper(io.BytesIO(), encoding)
    code: object = None
    with mock.patch.multiple(sys, argv=["chunkbench", *words], stdout=out, stderr=err):
        try:
            main()
        except SystemExit as end:
            code = end.code
    for stream in (out, err):
        stream.flush()
    return Done(code, *(stream.buffer.getvalue().decode(encoding) for stream in (out, err)))


SETTINGS = (
    *("user.name=n", "user.email=n@example.org", "commit.gpgsign=false"),
    *("protocol.file.allow=always", "init.defaultBranch=main"),
)


def git(folder: Path, *words: str) -> str:
    """What git prints in a folder. Commits have an author, and submodules may be folders."""
    command = ["git", *(part for setting in SETTINGS for part in ("-c", setting)), "-C", str(folder), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=git_environment()).stdout.strip()
