"""The command `chunkbench` in the process of the test, as its script calls it."""

from __future__ import annotations

import io
import sys
from typing import NamedTuple
from unittest import mock

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
