"""Reading and writing run directories.

A run directory holds `manifest.json` (what was asked for, where it ran), `cases.jsonl` (one line per case, appended
point by point) and `worker.log`. The writer holds an advisory lock on `.lock`; readers need none: lines are added, and
where a point is measured again the whole file is replaced at once.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from pydantic import ValidationError

from chunkbench import kinds
from chunkbench.store.facts import CaseFacts
from chunkbench.store.manifest import Manifest

SCHEMA_VERSION = 5
"""Of what is written. Version 2 added `yardsticks`, 3 `model` and `longest_n_c`, 4 `gpu`, `sampling` and two peaks, 5
the machine of every case, `machines` in place of `environment`, and `looks`."""
_READABLE = range(1, SCHEMA_VERSION + 1)

_MANIFEST, _CASES, _LOCK, WORKER_LOG = "manifest.json", "cases.jsonl", ".lock", "worker.log"


Remedy = Literal["resume", "resume or elsewhere", "elsewhere", "start anew"]


class RunError(ValueError):
    """A run cannot be made or used; the message says why and what to do.

    `remedy` names what mends it, where the command line has an option for that.
    """

    def __init__(self, message: str, remedy: Remedy | None = None) -> None:
        super().__init__(message)
        self.remedy = remedy


@dataclass
class Run:
    """A run as read from disk."""

    path: Path
    manifest: Manifest
    cases: list[CaseFacts] = field(default_factory=list)
    torn: bool = False
    """Whether the last line was cut short (a power cut); it is left out."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises `RunError`, which names `path`, where what is done inside meets an `OSError`."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}") from error


def open_run(path: Path | str) -> Run:
    """Read a run directory, or the one that a `cases.jsonl` lies in.

    Raises `RunError` if it is missing, of another schema version, or damaged before its last line.
    """
    directory = Path(path)
    if directory.name == _CASES:
        directory = directory.parent
    if not directory.is_dir():
        raise RunError(f"{path}: no such run directory")
    manifest, _ = _read_manifest(directory)
    cases, _, torn = _read_cases(directory / _CASES, manifest)
    return Run(directory, manifest, cases, torn)


def open_runs(path: Path | str) -> list[Run]:
    """The runs of a recording: a folder whose sub-folders 1, 2, ... are runs, or one run directory by itself.

    Raises `RunError` as `open_run` does, and if there is no run.
    """
    folder = Path(path)
    if folder.name == _CASES or (folder / _MANIFEST).exists() or not folder.is_dir():
        return [open_run(folder)]
    numbered = sorted((entry for entry in folder.iterdir() if entry.name.isdecimal()), key=lambda p: int(p.name))
    if not numbered:
        raise RunError(f"{path}: neither a run directory (no {_MANIFEST}) nor a recording (no runs 1, 2, ... in it)")
    return [open_run(entry) for entry in numbered]


def latest_run(root: Path, experiment: str | None = None) -> Path:
    """The newest run directory below `root`, of one experiment or of any.

    Raises `RunError` when there is none.
    """
    candidates = [p.parent for p in root.glob(f"*/{_MANIFEST}")]
    if experiment is not None:
        candidates = [p for p in candidates if _experiment_of(p) == experiment]
    if not candidates:
        wanted = f"run of {experiment}" if experiment else "run"
        raise RunError(f"{root}: no {wanted} here; `chunkbench run EXPERIMENT.yaml` makes one")
    return max(candidates, key=lambda p: (p / _MANIFEST).stat().st_mtime)


def newest_runs(root: Path) -> list[Path]:
    """The newest run directory of each experiment below `root`, the oldest of these first."""
    found = {_experiment_of(path.parent): path for path in sorted(root.glob(f"*/{_MANIFEST}"), key=_modified)}
    return [path.parent for path in sorted(found.values(), key=_modified)]


def _modified(path: Path) -> float:
    return path.stat().st_mtime


class RunWriter:
    """The one writer of a run directory."""

    def __init__(self, path: Path, values: dict[str, Any], cases: list[CaseFacts], lock: IO[str]) -> None:
        self.path = path
        self.cases = cases
        self._values = values
        self._lock = lock

    @property
    def manifest(self) -> Manifest:
        """The manifest as it is on disk."""
        return Manifest.model_validate(self._values)

    @classmethod
    def create(cls, path: Path, manifest: Mapping[str, Any]) -> RunWriter:
        """Start a run in a new or empty directory; raises `RunError` if a run or anything else is already there."""
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
            inside = {entry.name for entry in path.iterdir()}
        if inside and not inside & {_MANIFEST, _LOCK}:
            raise RunError(f"{path}: holds other files and no run; choose a new or an empty folder", remedy="elsewhere")
        lock = _locked(path)
        if (path / _MANIFEST).exists():
            lock.close()
            message = f"{path}: a run is already here; go on with it, or choose another folder"
            raise RunError(message, remedy="resume or elsewhere")
        writer = cls(path, {"schema_version": SCHEMA_VERSION, **manifest}, [], lock)
        writer._write_manifest()
        (path / _CASES).touch()
        return writer

    @classmethod
    def resume(cls, path: Path) -> RunWriter:
        """Go on with a run; a line torn by a power cut is removed. Raises `RunError`."""
        manifest, values = _read_manifest(path)
        lock = _locked(path)
        cases, good_bytes, torn = _read_cases(path / _CASES, manifest)
        if torn:
            with (path / _CASES).open("r+b") as file:
                file.truncate(good_bytes)
        return cls(path, values, cases, lock)

    @property
    def worker_log(self) -> Path:
        """Where the workers' standard error goes."""
        return self.path / WORKER_LOG

    def append(self, cases: Sequence[CaseFacts]) -> None:
        """Append the cases of one point, in one write that reaches the disk before this returns.

        Where some of them were there (half a point, or one that is measured again) they take the place of those.
        """
        keys = {case.key for case in cases}
        kept = [case for case in self.cases if case.key not in keys]
        if len(kept) < len(self.cases):
            _replace(self.path / _CASES, _lines([*kept, *cases]))
        else:
            with (self.path / _CASES).open("ab") as file:
                file.write(_lines(cases).encode())
                file.flush()
                os.fsync(file.fileno())
        self.cases[:] = [*kept, *cases]

    def update_manifest(self, **values: Any) -> None:
        """Change entries of the manifest on disk."""
        self._values |= values
        self._write_manifest()

    def close(self) -> None:
        """Let others write."""
        self._lock.close()

    def _write_manifest(self) -> None:
        _replace(self.path / _MANIFEST, json.dumps(self._values, indent=2) + "\n")


def _experiment_of(path: Path) -> str | None:
    """Name of a run's experiment; None where the manifest does not say, or cannot be read."""
    try:
        manifest, _ = _read_manifest(path)
    except RunError:
        return None
    return manifest.experiment.name or None


def _locked(path: Path) -> IO[str]:
    with writing(path):
        lock = (path / _LOCK).open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        message = f"{path}: another chunkbench is writing here; wait for it or choose another folder"
        raise RunError(message, remedy="elsewhere") from None
    return lock


def _read_manifest(path: Path) -> tuple[Manifest, dict[str, Any]]:
    """The manifest, and its values as they stand in the file."""
    file = path / _MANIFEST
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path}: not a run directory (no {_MANIFEST})") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{file}: cannot be read: {error}") from error
    version = values.get("schema_version") if isinstance(values, dict) else None
    if not isinstance(version, int) or version not in _READABLE:
        known = f"{_READABLE[0]} to {_READABLE[-1]}"
        raise RunError(f"{path}: has schema version {version!r}, this chunkbench reads versions {known}")
    try:
        manifest = Manifest.model_validate(values)
    except ValidationError as error:
        raise RunError(f"{file}: damaged: {_first(error)}") from None
    if manifest.experiment.kind not in kinds.names():
        known = ", ".join(kinds.names())
        raise RunError(f"{file}: its experiment is of kind {manifest.experiment.kind!r}; this chunkbench knows {known}")
    return manifest, values


def _first(error: ValidationError) -> str:
    """What is wrong first, and where."""
    detail = error.errors()[0]
    return f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" if detail["loc"] else str(detail["msg"])


def _read_cases(path: Path, manifest: Manifest) -> tuple[list[CaseFacts], int, bool]:
    """Cases, the bytes that hold whole lines, and whether a torn line follows them."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], 0, False
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from None
    model: type[CaseFacts] = kinds.get(manifest.experiment.kind).facts()
    cases: list[CaseFacts] = []
    good = 0
    for number, line in enumerate(data.splitlines(keepends=True), start=1):
        last = good + len(line) == len(data)
        try:
            if not line.endswith(b"\n"):
                raise ValueError("no end of line")
            case = model.model_validate_json(line)
        except ValueError as error:
            if last:
                return cases, good, True
            what = _first(error) if isinstance(error, ValidationError) else error
            raise RunError(f"{path}:{number}: damaged: {what}") from None
        cases.append(case if case.machine else case.model_copy(update={"machine": manifest.only_machine}))
        good += len(line)
    return cases, good, False


def _lines(cases: Sequence[CaseFacts]) -> str:
    return "".join(case.model_dump_json() + "\n" for case in cases)


def _replace(path: Path, text: str) -> None:
    """Write a file so that a reader or a power cut sees the old text or the new, never a part."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
