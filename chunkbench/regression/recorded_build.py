"""A build of this package in an archive, and workers that run from what was kept instead of from here."""

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
# Editable installs put finders of their own before sys.path: the package would be found here again. The worker's module
# had another name before the kinds of work had folders.
_LAUNCH = """\
import importlib.util, runpy, sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
sys.meta_path[:] = [BuiltinImporter, FrozenImporter, PathFinder]
sys.path.insert(0, sys.argv.pop(1))
here = importlib.util.find_spec("chunkbench.worker")
runpy.run_module("chunkbench.worker" if here else "chunkbench.runner.worker", run_name="__main__", alter_sys=True)
"""


def keep(archive: Path) -> None:
    """Put this package, native code included, into an archive. Raises `OSError` when that cannot be written."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as kept:
        kept.writestr(_TAG, json.dumps(_tag(), indent=1) + "\n")
        for path, inside in package_files():
            kept.write(path, Path("chunkbench") / inside)


def refusal(archive: Path) -> str:
    """Why the build in an archive does not run here; empty if it does."""
    try:
        with zipfile.ZipFile(archive) as kept:
            tag = json.loads(kept.read(_TAG))
    except FileNotFoundError:
        return "it keeps no build"
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        return f"its build cannot be read ({error})"
    wrong = [f"{what} {tag.get(what)}, not {here}" for what, here in _tag().items() if tag.get(what) != here]
    return f"its build is for {', '.join(wrong)}" if wrong else ""


@contextmanager
def unpacked(archive: Path) -> Iterator[Path]:
    """The folder that the build of an archive can be run from, for the time being."""
    with tempfile.TemporaryDirectory(prefix="chunkbench-build-") as folder:
        with zipfile.ZipFile(archive) as kept:
            kept.extractall(folder)
        yield Path(folder)


def worker_command(folder: Path) -> list[str]:
    """Starts a worker of the package in `folder`, with every other package as it is installed here."""
    return [sys.executable, "-c", _LAUNCH, str(folder.resolve())]


def _tag() -> dict[str, str]:
    """What a native module depends on."""
    return {"python": str(sys.implementation.cache_tag), "system": platform.system(), "machine": platform.machine()}
