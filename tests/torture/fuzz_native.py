"""Calls of the native module with wrong shapes, tables, strides, lengths and sizes: refused, never a crash."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from chunkbench.kernels import cpu
from scripts.test_native import BUILDS, ROOT, build, library
from tests.torture.trials import Harm, Part, Trial, Unavailable

MODULE = "tests.torture.native_calls"
CALLS = 50
LIMIT_S = 300.0
"""Calls that take longer hang."""
SEEDS = Path(__file__).with_name("native_seeds.txt")
"""Seeds that together reach all entry points and nine of ten refusals; a run with sanitizers begins with them. A seed
that fails is added."""


class Child:
    """A process that makes calls; a new one after a crash."""

    def __init__(self, module: str, folder: Path, environment: dict[str, str]) -> None:
        self.last = folder / "last-call"
        self.last.touch()
        self.errors = (folder / "errors").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", MODULE, module, str(self.last)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, cwd=ROOT, env=environment,
        )  # fmt: skip

    def calls(self, seed: int, count: int) -> bool:
        """Whether the process lived through them."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(seed, count, file=self.process.stdin, flush=True)
        if not select.select([self.process.stdout], [], [], LIMIT_S)[0]:
            return False
        return self.process.stdout.readline() == "done\n"

    def end(self) -> str:
        """What it said on the standard error."""
        self.process.kill()
        self.process.communicate()
        with self.errors as errors:
            errors.seek(0)
            return errors.read()


def sanitized() -> tuple[str, dict[str, str]]:
    """The module with sanitizers, and the variables that its process needs. Raises Unavailable."""
    variant = BUILDS["sanitize"]
    try:
        preload = " ".join(library(name) for name in variant.preload)
        return str(build("sanitize")), {**os.environ, **variant.environment, "LD_PRELOAD": preload}
    except SystemExit as error:
        raise Unavailable(str(error)) from None
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"the build with sanitizers failed: {error.cmd[0]} returned {error.returncode}") from None


@contextmanager
def trials(sanitize: bool) -> Iterator[Harm]:
    if cpu.native() is None:
        raise Unavailable(cpu.why_missing())
    module, environment = sanitized() if sanitize else ("", dict(os.environ))
    children: list[Child] = []
    room = TemporaryDirectory()
    known = [int(line) for line in SEEDS.read_text().split()] if sanitize else []

    def harm(trial: Trial) -> int:
        if not children:
            children.append(Child(module, Path(room.name), environment))
        seeds = [trial.number, *known]
        known.clear()
        for seed in seeds:
            if not children[0].calls(seed, CALLS):
                child = children.pop()
                said = child.end()
                shutil.copy(child.last, trial.folder)
                (trial.folder / "errors").write_text(said)
                raise AssertionError(f"seed {seed}, {child.last.read_text().strip()[:600]}:\n{said[-3000:]}")
        return CALLS * len(seeds)

    try:
        yield harm
    finally:
        for child in children:
            child.end()
        room.cleanup()


PART = Part(
    "fuzz native",
    "wrong shapes, tables, strides, lengths and sizes for all entry points of the native module",
    "errors, and no report of a sanitizer",
    partial(trials, sanitize=True),
    partial(trials, sanitize=False),
    minutes=19,
)
