"""A set-up without a network, from wheels that were downloaded before."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from scripts.set_up import CONSTRAINTS, DEPENDENCIES, PYPROJECT, ROOT, VLLM
from tests.torture.trials import Harm, Part, Trial, Unavailable


@contextmanager
def wheelhouse() -> Iterator[Harm]:
    """Wheels of all that a set-up needs, from which each trial makes an environment. Raises Unavailable."""
    offline = ["unshare", "--map-root-user", "--net"]
    if run([*offline, "true"], ROOT).returncode:
        raise Unavailable("a network namespace: `unshare --map-root-user --net true` fails here")
    with tempfile.TemporaryDirectory() as folder:
        house = Path(folder) / "wheels"
        wheel: list[str | Path] = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--wheel-dir",
            house,
            "--constraint",
            CONSTRAINTS,
        ]
        build = [*PYPROJECT["build-system"]["requires"], "cmake", "ninja"]
        done = run([*wheel, *DEPENDENCIES, *build], ROOT)
        done = done if done.returncode else run([*wheel, "--no-deps", VLLM], ROOT)
        if done.returncode:
            raise Unavailable(f"a network to fill the wheelhouse from: {done.stderr[-300:]}")
        yield lambda trial: set_up_offline(offline, house, trial)


def set_up_offline(offline: Sequence[str], house: Path, trial: Trial) -> int:
    source, environment = trial.folder / "source", trial.folder / "venv"
    source.mkdir()
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(
        ["cp", "--parents", "-P", "-t", source, *listed.decode().strip("\0").split("\0")], cwd=ROOT, check=True
    )
    alone = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(house), "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1"}
    done = run([*offline, sys.executable, "scripts/set_up.py", environment], source, alone)
    (trial.folder / "set-up.txt").write_text(done.stdout + done.stderr)
    assert done.returncode == 0, f"set-up ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}"
    assert (environment / ".ready").exists(), f"set-up is not complete: {(done.stdout + done.stderr)[-2000:]}"
    assert "NOTICE" not in done.stdout, done.stdout
    done = run([*offline, environment / "bin" / "chunkbench", "doctor"], trial.folder)
    assert done.returncode == 0, f"doctor: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    shutil.rmtree(environment)
    return 1


LIMIT_S = 1200.0
"""Of each command: a download that hangs ends."""


def run(
    command: Sequence[str | Path], folder: Path, more: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=os.environ | (more or {}), check=False, timeout=LIMIT_S
    )


PART = Part(
    "supply wheelhouse",
    "set-up in a network namespace with nothing in it, from wheels that were downloaded before",
    "a complete environment, in which `chunkbench doctor` ends with 0",
    wheelhouse,
    minutes=0,
)
