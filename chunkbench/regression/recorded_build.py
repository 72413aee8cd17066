"""Builds of this package in archives, and the command that starts a worker from such a build."""

from __future__ import annotations

import json
import platform
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chunkbench.environment.revision import package_files

_TAG = "build.json"
# An editable install adds import finders that come before sys.path: they would find this revision's package. So only
# Python's own finders stay. Older builds have the worker's module under another name.
_LAUNCH = """\
import importlib.util, runpy, sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
sys.meta_path[:] = [BuiltinImporter, FrozenImporter, PathFinder]
sys.path.insert(0, sys.argv.pop(1))
worker = importlib.util.find_spec("chunkbench.worker")
runpy.run_module("chunkbench.worker" if worker else "chunkbench.runner.worker", run_name="__main__", alter_sys=True)
"""


def save_build(archive: Path) -> None:
    """Write this package, with its native code, into an archive. Raises `OSError`."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(_TAG, json.dumps(_platform(), indent=1) + "\n")
        for path, inside in package_files():
            file.write(path, Path("chunkbench") / inside)


def why_unusable(archive: Path) -> str:
    """Why the build in an archive does not run here. Empty if it runs."""
    try:
        with zipfile.ZipFile(archive) as file:
            built_for = json.loads(file.read(_TAG))
    except FileNotFoundError:
        return "it keeps no build"
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        return f"its build cannot be read ({error})"
    current = _platform()
    wrong = [f"{key} {built_for.get(key)}, not {current[key]}" for key in current if built_for.get(key) != current[key]]
    return f"its build is for {', '.join(wrong)}" if wrong else ""


@contextmanager
def unpacked_build(archive: Path) -> Iterator[Path]:
    """A temporary folder with the build of an archive, from which it can be run."""
    with tempfile.TemporaryDirectory(prefix="chunkbench-build-") as folder:
        with zipfile.ZipFile(archive) as file:
            file.extractall(folder)
        yield Path(folder)


def worker_command(folder: Path) -> list[str]:
    """Command line of a worker that runs the package in `folder`. All other packages are the installed ones."""
    return [sys.executable, "-c", _LAUNCH, str(folder.resolve())]


def _platform() -> dict[str, str]:
    """What a native module is built for."""
    return {"python": str(sys.implementation.cache_tag), "system": platform.system(), "machine": platform.machine()}
