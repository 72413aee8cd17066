"""Builds: folders and archives that hold this package and the packages of implementations, and from which workers run.

Both sides of a comparison run from such a folder, started by the same command line. A build keeps a hash of every file.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import stat
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path, PurePath, PurePosixPath

from pydantic import BaseModel, ConfigDict, ValidationError

from chunkbench.environment.revision import package_files
from chunkbench.regression.packages import Install, Package
from chunkbench.store import RunError

MAX_FILES, MAX_BYTES = 50_000, 4 << 30
"""Limits of an archive."""
_MAX_TAG_BYTES = 64 << 20
_TAG, _OURS, _PACKAGES = "build.json", "chunkbench", "packages"
# The first two statements draw where later objects begin within a page, and within Python's own pools. Otherwise the
# length of the build's path decides that, in all processes of a side alike, and makes code that runs in Python or in
# PyTorch's dispatcher up to 8% slower. An editable install adds import finders that come before sys.path: they would
# find the installed packages. So only Python's own finders stay. Older builds have the worker's module under another
# name.
_LAUNCH = """\
import ctypes, importlib.util, os, random, runpy, sys
ctypes.CDLL(None).malloc((1 << 20) + random.randrange(1 << 16))
kept = [bytes(size) for size in range(0, 480, 16) for _ in range(random.randrange(256))]
kept += [kind() for kind in (object, float) for _ in range(random.randrange(256))]
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
sys.meta_path[:] = [BuiltinImporter, FrozenImporter, PathFinder]
sys.path[:0] = sys.argv.pop(1).split(os.pathsep)
program = sys.argv.pop(1)
if program:
    runpy.run_path(program, run_name="__main__")
else:
    worker = importlib.util.find_spec("chunkbench.worker")
    runpy.run_module("chunkbench.worker" if worker else "chunkbench.runner.worker", run_name="__main__", alter_sys=True)
"""


class KeptPackage(BaseModel):
    """A package in a build, beside ChunkBench."""

    model_config = ConfigDict(frozen=True)

    name: str
    version: str
    install: Install
    """How it was installed where the build was made."""
    provides: tuple[str, ...]
    """Ids of the implementations that it registers."""
    roots: tuple[str, ...]
    """Folders of the build in which Python finds its modules."""
    native: bool = False
    """Whether it holds compiled code."""

    @property
    def folder(self) -> str:
        """The folder of the build that holds its files."""
        return package_folder(self.name)


class BuildFacts(BaseModel):
    """What `build.json` says. Builds of older versions keep no packages and no hashes."""

    model_config = ConfigDict(frozen=True)

    python: str = ""
    system: str = ""
    machine: str = ""
    torch: str = ""
    """The PyTorch beside which the packages were compiled; empty in older builds."""
    packages: tuple[KeptPackage, ...] = ()
    files: dict[str, str] = {}
    """File of the build -> its SHA-256."""

    @property
    def provided(self) -> frozenset[str]:
        """Ids of the implementations whose code the build keeps, beside those of ChunkBench."""
        return frozenset(name for package in self.packages for name in package.provides)

    def digest(self, folder: str) -> str:
        """One hash of all files below a folder of the build; empty in builds without hashes."""
        inside = sorted(item for item in self.files.items() if item[0].startswith(f"{folder}/"))
        return hashlib.sha256(json.dumps(inside).encode()).hexdigest() if inside else ""


@dataclass(frozen=True)
class Build:
    """A build in a folder, ready to run."""

    folder: Path
    facts: BuildFacts

    def command(self, program: Sequence[str] = ()) -> list[str]:
        """Command line of a worker that runs from this build, or of a script with arguments that takes its place.

        All packages that the build does not hold are the installed ones.
        """
        here = self.folder.resolve()
        roots = [here, *(here / root for package in self.facts.packages for root in package.roots)]
        return [sys.executable, "-c", _LAUNCH, os.pathsep.join(map(str, roots)), *(program or [""])]


def copy_build(folder: Path, packages: Sequence[Package]) -> Build:
    """Copy this package, with its native code, and other packages into an empty folder. Raises `OSError`."""
    copy_ours(folder)
    return seal_build(folder, copy_packages(folder, packages))


def copy_ours(folder: Path) -> None:
    """Copy this package, with its native code, into a folder. Raises `OSError`."""
    _copy(folder / _OURS, package_files())


def copy_packages(folder: Path, packages: Sequence[Package]) -> tuple[KeptPackage, ...]:
    """Copy packages, as they are installed, into a folder. Raises `OSError`."""
    for package in packages:
        _copy(folder / package_folder(package.name), package.files)
    return tuple(
        KeptPackage(
            name=package.name,
            version=package.version,
            install=package.install,
            provides=package.provides,
            roots=tuple(f"{package_folder(package.name)}/{root}" for root in package.roots),
            native=package.native,
        )
        for package in packages
    )


@contextmanager
def new_build_folder() -> Iterator[Path]:
    """An empty folder for a build, in a temporary folder of its own.

    The paths of all builds have one length, because the length has an effect on speed (see `_LAUNCH`).
    """
    with tempfile.TemporaryDirectory(prefix="chunkbench-") as temporary:
        folder = Path(temporary) / "build"
        folder.mkdir()
        yield folder


def package_folder(name: str) -> str:
    """The folder of a build that holds the files of a package."""
    return f"{_PACKAGES}/{name}"


def _copy(folder: Path, sources: Iterable[tuple[Path, PurePath]]) -> None:
    for path, inside in sources:
        target = folder / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def seal_build(folder: Path, packages: tuple[KeptPackage, ...]) -> Build:
    """Write `build.json` for the files in a folder. Raises `OSError`."""
    hashes = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    facts = BuildFacts(**_platform(), torch=version("torch"), packages=packages, files=hashes)
    (folder / _TAG).write_text(facts.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return Build(folder, facts)


def pack(build: Build, archive: Path) -> None:
    """Write a build into an archive. Raises `OSError`."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for inside in (_TAG, *build.facts.files):
            file.write(build.folder / inside, inside)


def digest_of(archive: Path) -> str:
    """SHA-256 of the `build.json` of an archive, which holds the hashes of all its other files. Raises `OSError`."""
    with zipfile.ZipFile(archive) as file:
        return hashlib.sha256(_read(file, _TAG, _MAX_TAG_BYTES)).hexdigest()


def read_facts(archive: Path) -> BuildFacts:
    """`build.json` of an archive. Raises `RunError`."""
    try:
        with zipfile.ZipFile(archive) as file:
            return BuildFacts.model_validate_json(_read(file, _TAG, _MAX_TAG_BYTES))
    except FileNotFoundError:
        raise RunError("it keeps no build") from None
    except ValidationError as error:
        raise RunError(f"its build cannot be read ({error.errors()[0]['msg']})") from None
    except (OSError, KeyError, ValueError, RuntimeError, zipfile.BadZipFile) as error:
        raise RunError(f"its build cannot be read ({error})") from None


def why_unusable(facts: BuildFacts) -> str:
    """Why a build does not run here. Empty if it runs."""
    wrong = [
        f"{key} {getattr(facts, key)}, not {here}" for key, here in _platform().items() if getattr(facts, key) != here
    ]
    if wrong:
        return f"its build is for {', '.join(wrong)}"
    here = version("torch")
    compiled = [package.name for package in facts.packages if package.native]
    if compiled and facts.torch != here:
        return f"{', '.join(compiled)} in its build was compiled for PyTorch {facts.torch}, not {here}"
    return ""


@contextmanager
def unpacked_build(archive: Path, digest: str = "") -> Iterator[Build]:
    """A temporary folder with the build of an archive.

    Raises `RunError` if the archive breaks a limit, if a path in it leads elsewhere, or if a file differs from its
    hash; `digest` is the SHA-256 that `build.json` itself must have, where it is known.
    """
    facts = read_facts(archive)
    if digest and digest_of(archive) != digest:
        raise RunError(f"{archive}: is not the build that was recorded: build.json has another hash. Record anew")
    with new_build_folder() as folder:
        try:
            with zipfile.ZipFile(archive) as file:
                _extract(file, folder, facts)
        except RunError:
            raise
        except (OSError, KeyError, ValueError, RuntimeError, zipfile.BadZipFile) as error:
            raise RunError(f"{archive}: cannot be unpacked: {error}") from None
        yield Build(folder, facts)


def _extract(file: zipfile.ZipFile, folder: Path, facts: BuildFacts) -> None:
    """Write the files of an archive into a folder. Raises `RunError`."""
    entries = [entry for entry in file.infolist() if not entry.is_dir()]
    if len(entries) > MAX_FILES:
        raise RunError(f"{file.filename}: holds {len(entries)} files, more than {MAX_FILES}")
    left = MAX_BYTES
    for entry in entries:
        inside = PurePosixPath(entry.filename)
        link = stat.S_ISLNK(entry.external_attr >> 16)
        if link or inside.is_absolute() or ".." in inside.parts or "\\" in entry.filename or ":" in entry.filename:
            raise RunError(f"{file.filename}: the entry {entry.filename!r} leads out of the archive")
        data = _read(file, entry.filename, left)
        left -= len(data)
        hash_ = facts.files.get(entry.filename)
        if facts.files and entry.filename != _TAG and hashlib.sha256(data).hexdigest() != hash_:
            raise RunError(f"{file.filename}: {entry.filename} differs from its recorded hash. Record anew")
        target = folder / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    missing = facts.files.keys() - {entry.filename for entry in entries}
    if missing:
        raise RunError(f"{file.filename}: lacks {min(missing)}, which was recorded. Record anew")


def _read(file: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """A file of an archive, whatever size it claims to have. Raises `RunError` beyond `limit` bytes."""
    with file.open(name) as entry:
        data = entry.read(limit + 1)
    if len(data) > limit:
        raise RunError(f"{file.filename}: unpacks to more than {MAX_BYTES >> 30} GiB")
    return data


def _platform() -> dict[str, str]:
    """What a native module is built for."""
    return {"python": str(sys.implementation.cache_tag), "system": platform.system(), "machine": platform.machine()}
