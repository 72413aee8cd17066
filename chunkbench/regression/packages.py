"""The packages whose code a comparison measures, found among the installed distributions, with all their files.

An implementation of somebody else's project comes from a distribution of its own. It is installed ordinarily (its files
are those of its RECORD), or in place (`pip install -e`: its files are its source tree). A side of a comparison runs
from a copy of these files, so that a later change of the project cannot reach it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath
from typing import Literal
from urllib.parse import unquote, urlparse

from chunkbench.store import RunError

MAX_BYTES, MAX_FILES = 500 << 20, 20_000
"""Limits of what one package may hold."""
_OURS = "chunkbench"
_SITE, _PROJECT = "site", "project"
_NATIVE = (*EXTENSION_SUFFIXES, ".so", ".dylib", ".pyd", ".dll")
_SKIPPED_FOLDERS = {"__pycache__", "node_modules", "build", "dist"}
_OUTPUTS = ("cases.jsonl", "build.zip", "comparison.json", "worker-head.log")
"""A folder with one of these is ChunkBench's own output: a run, a recording, a gate."""
_METADATA = ("METADATA", "PKG-INFO", "entry_points.txt", "top_level.txt")

Install = Literal["installed", "in place", "built"]


@dataclass(frozen=True)
class Package:
    """One distribution to copy."""

    name: str
    """Normalised name: lower case, words joined by hyphens."""
    version: str
    install: Install
    provides: tuple[str, ...]
    """Ids of the implementations that it registers."""
    files: tuple[tuple[Path, PurePosixPath], ...]
    """Each file, and its place below the package's own folder of a build."""
    roots: tuple[PurePosixPath, ...]
    """Folders, below the same, in which Python finds its modules."""

    @property
    def native(self) -> bool:
        """Whether it holds compiled code."""
        return any(path.name.endswith(_NATIVE) for path, _ in self.files)


def packages_of(entry_points: Collection[EntryPoint], without: Collection[str] = ()) -> list[Package]:
    """The packages that register these implementations, without ChunkBench, and what they need that is installed in
    place.

    `without` names packages, normalised, that the caller has from elsewhere. Raises `RunError` where a package cannot
    be copied.
    """
    found: dict[str, Distribution] = {}
    waiting = [point.dist for point in entry_points if point.dist is not None]
    while waiting:
        candidate = waiting.pop()
        name = normalised(candidate.name)
        if name in found or name == _OURS:
            continue
        found[name] = candidate
        waiting += [needed for needed in _requirements(candidate) if _source(needed) is not None]
    return [_package(name, found[name], entry_points) for name in sorted(found.keys() - set(without))]


def normalised(name: str) -> str:
    """A distribution's name as comparisons spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _requirements(package: Distribution) -> Iterator[Distribution]:
    """The installed distributions that a distribution requires."""
    for requirement in package.requires or ():
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        if name is not None:
            try:
                yield distribution(name.group())
            except PackageNotFoundError:
                continue  # an extra that was not asked for


def _package(name: str, package: Distribution, entry_points: Collection[EntryPoint]) -> Package:
    mine = [point for point in entry_points if point.dist is not None and normalised(point.dist.name) == name]
    source = _source(package)
    if source is None:
        files, roots = _installed_files(package), [PurePosixPath(_SITE)]
    else:
        files, roots = _in_place_files(package, source, mine)
    _check_size(name, files)
    install: Install = "installed" if source is None else "in place"
    provides = tuple(sorted(point.name for point in mine))
    return Package(name, package.version, install, provides, tuple(files), tuple(roots))


def _source(package: Distribution) -> Path | None:
    """The project folder of a distribution that is installed in place; None if it is installed ordinarily."""
    text = package.read_text("direct_url.json")
    if text is None:
        return None
    try:
        origin = json.loads(text)
        editable = bool(origin["dir_info"]["editable"])
    except (ValueError, KeyError, TypeError):
        return None
    return Path(unquote(urlparse(origin["url"]).path)) if editable else None


def _installed_files(package: Distribution) -> list[tuple[Path, PurePosixPath]]:
    if package.files is None:
        raise RunError(f"{package.name}: its files are not known (no RECORD); install it with pip")
    files = []
    for entry in package.files:
        path = Path(str(package.locate_file(entry)))
        if ".." not in entry.parts and entry.suffix not in (".pyc", ".pth") and path.is_file():
            files.append((path, PurePosixPath(_SITE, *entry.parts)))
    return files


def _in_place_files(
    package: Distribution, source: Path, entry_points: Sequence[EntryPoint]
) -> tuple[list[tuple[Path, PurePosixPath]], list[PurePosixPath]]:
    """The source tree, and from the installation what cannot lie there: metadata and compiled modules."""
    if not source.is_dir():
        raise RunError(f"{package.name}: its project {source} is no longer there; install it again")
    source = source.resolve()
    files = [(path, PurePosixPath(_PROJECT, *path.relative_to(source).parts)) for path in _tree(source)]
    for entry in package.files or ():
        path = Path(str(package.locate_file(entry)))
        metadata = entry.name in _METADATA and entry.parent.name.endswith(".dist-info")
        if (metadata or entry.name.endswith(_NATIVE)) and ".." not in entry.parts and path.is_file():
            files.append((path, PurePosixPath(_SITE, *entry.parts)))
    roots = []
    for module in sorted(_top_modules(package, entry_points)):
        root = _root_of(module)
        if root is None:
            continue
        if not root.is_relative_to(source):
            raise RunError(f"{package.name}: its module {module} lies in {root}, outside of its project {source}")
        inside = PurePosixPath(_PROJECT, *root.relative_to(source).parts)
        if inside not in roots:
            roots.append(inside)
    return files, [*roots, PurePosixPath(_SITE)]


def _top_modules(package: Distribution, entry_points: Sequence[EntryPoint]) -> set[str]:
    listed = (package.read_text("top_level.txt") or "").split()
    return {point.module.split(".")[0] for point in entry_points} | set(listed)


def _root_of(module: str) -> Path | None:
    """The folder in which Python finds a top-level module; None if there is none, or if it has no file."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve().parent
    return Path(spec.origin).resolve().parent if spec.origin and spec.has_location else None


def _tree(folder: Path) -> Iterator[Path]:
    """The files of a project: no version control, caches, virtual environments or build folders."""
    for here, folders, names in os.walk(folder):
        at = Path(here)
        folders[:] = sorted(name for name in folders if _kept_folder(at / name))
        yield from (at / name for name in sorted(names) if (at / name).is_file() and not name.endswith(".pyc"))


def _kept_folder(folder: Path) -> bool:
    name = folder.name
    skipped = name in _SKIPPED_FOLDERS or name.startswith(".") or name.endswith(".egg-info")
    if skipped or folder.is_symlink():
        return False
    return not any((folder / marker).exists() for marker in ("pyvenv.cfg", *_OUTPUTS))


def _check_size(name: str, files: Sequence[tuple[Path, PurePosixPath]]) -> None:
    sizes: dict[str, int] = {}
    for path, inside in files:
        top = "/".join(inside.parts[1:2])
        sizes[top] = sizes.get(top, 0) + path.stat().st_size
    total = sum(sizes.values())
    if total <= MAX_BYTES and len(files) <= MAX_FILES:
        return
    largest = max(sizes, key=lambda part: sizes[part])
    raise RunError(
        f"{name}: too large to be kept: {len(files)} files, {total >> 20} MiB (at most {MAX_FILES} files, "
        f"{MAX_BYTES >> 20} MiB); most of it is {largest}. Move data out of the project, or install it without -e"
    )
