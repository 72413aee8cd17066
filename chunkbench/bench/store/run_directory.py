"""Reads and writes run directories.

A run directory holds `manifest.json` (the experiment and the machines), `cases.jsonl` (one line per case, appended
point by point) and `worker.log`. The writer holds an advisory lock on `.lock`. Readers need no lock, because the writer
only appends lines or replaces the whole file atomically.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from codecs import BOM_UTF8
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError
from pydantic_core import from_json

from chunkbench.bench import workload
from chunkbench.bench.store.manifest import Manifest
from chunkbench.bench.store.results import Result
from chunkbench.run_error import RunError
from chunkbench.text_file import problem_of

SCHEMA_VERSION = 10
"""The schema version of new runs.

Version 2 added `yardsticks`. Version 3 added `model` and `longest_n_c`. Version 4 added `gpu`, `sampling` and two
peaks. Version 5 added the machine of every case and `looks`, and replaced `environment` by `machines`. Version 6 added
`huge_share` and a peak. Version 7 added `load` and `rate`. Version 8 gave results only the axes and figures of their
own kind of work. Version 9 added `deviation`, and the axes of caches whose heads keep windows. Version 10 added
`tree_s` of servers, and `mean_batch` and `prompt_share` of replays. Since version 10, replays also give times to
requests with several answers.
"""
_OWN_FIELDS = 8
"""The first schema version whose lines have only the fields of their own kind."""
_READABLE = range(1, SCHEMA_VERSION + 1)

_MANIFEST, _CASES, _LOCK, WORKER_LOG = "manifest.json", "cases.jsonl", ".lock", "worker.log"

TORN = "the last line of cases.jsonl is incomplete"
"""The warning about a run whose last line is cut short."""


@dataclass
class Run:
    path: Path
    manifest: Manifest
    cases: list[Result] = field(default_factory=list)
    torn: bool = False
    """Whether the last line is incomplete (after a power cut). `cases` does not contain this line."""
    part: str = ""
    """The kind of machine, if this object is one of the parts that `by_machine_kind` makes; else empty."""

    def by_machine_kind(self) -> list[Run]:
        """Split the run into one part for each kind of machine. Usually there is one kind, and the run itself is
        returned.

        A part has the machines, the cases and the planned points of its kind.
        """
        kinds_here = {id: machine.kind for id, machine in self.manifest.machines.items()}
        several = sorted({kinds_here[case.machine] for case in self.cases if case.machine in kinds_here})
        if len(several) < 2:
            return [self]
        return [self._part(kind, [id for id in kinds_here if kinds_here[id] == kind], len(several)) for kind in several]

    def _part(self, kind: str, machines: Collection[str], parts: int) -> Run:
        points = self.manifest.points and self.manifest.points // parts
        its_machines = {id: self.manifest.machines[id] for id in machines}
        manifest = self.manifest.model_copy(update={"machines": its_machines, "points": points})
        return Run(self.path, manifest, [case for case in self.cases if case.machine in machines], self.torn, kind)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an `OSError` of the `with` block into a `RunError` that names `path`."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}") from error


def open_run(path: Path | str) -> Run:
    """Read a run directory, given its path or the path of its `cases.jsonl`.

    Raises `RunError` if the run is missing, has an unknown schema version, or is damaged before its last line.
    """
    directory = Path(path)
    if directory.name == _CASES:
        directory = directory.parent
    if not directory.is_dir():
        recorded = "results/recorded" in directory.as_posix()
        where = "; recorded runs are in a checkout of ChunkBench, not in its package" if recorded else ""
        raise RunError(f"{path}: no such run directory{where}")
    manifest, _ = _read_manifest(directory)
    cases, _, torn = _read_cases(directory / _CASES, manifest)
    return Run(directory, manifest, cases, torn)


def open_runs(path: Path | str) -> list[Run]:
    """Read the runs of several processes that measured one experiment together.

    `path` is a folder with the folders 1, 2, ..., or a single run directory. In a folder of `chunkbench regress --out`,
    the runs of HEAD are read. Raises `RunError` as `open_run` does, and if the folder has no run.
    """
    folder = Path(path)
    if folder.name == _CASES or (folder / _MANIFEST).exists() or not folder.is_dir():
        return [open_run(folder)]
    if (folder / "head" / "1" / _MANIFEST).exists():
        folder /= "head"
    numbered = sorted((entry for entry in folder.iterdir() if entry.name.isdecimal()), key=lambda p: int(p.name))
    if not numbered:
        raise RunError(f"{path}: neither a run directory (no {_MANIFEST}) nor a folder with the runs 1, 2, ...")
    return [open_run(entry) for entry in numbered]


def runs_below(folder: Path) -> list[Path]:
    """The run that a path names, or else all runs in a folder, at any depth. Raises `RunError` if there is none."""
    if folder.name == _CASES or (folder / _MANIFEST).exists() or not folder.is_dir():
        return [folder]
    found = sorted(
        path.parent
        for path in folder.rglob(_MANIFEST)
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not found:
        raise RunError(f"{folder}: there is no run in it (no {_MANIFEST} at any depth)")
    return found


def latest_run(root: Path, experiment: str | None = None) -> Path:
    """The newest run directory below `root`, of one experiment or of any experiment.

    Raises `RunError` if there is none.
    """
    candidates = [p.parent for p in root.glob(f"*/{_MANIFEST}")]
    if experiment is not None:
        candidates = [p for p in candidates if _experiment_of(p) == experiment]
    if not candidates:
        wanted = f"run of {experiment}" if experiment else "run"
        raise RunError(f"{root}: no {wanted} here; `chunkbench run {experiment or 'EXPERIMENT'}` makes one")
    return max(candidates, key=lambda p: _begun(p / _MANIFEST))


def newest_runs(root: Path) -> list[Path]:
    """The newest run directory of each experiment below `root`, sorted from the oldest to the newest."""
    newest = {_experiment_of(path.parent): path for path in sorted(root.glob(f"*/{_MANIFEST}"), key=_begun)}
    return [path.parent for path in sorted(newest.values(), key=_begun)]


def _begun(manifest: Path) -> tuple[float, float]:
    """Sort key: the time when a run began, from its manifest, because a copied file has the time of the copy. Runs
    without this time come first."""
    try:
        values = from_json(manifest.read_bytes().removeprefix(BOM_UTF8))
        started = datetime.fromisoformat(values["started_at"])
        utc = started if started.tzinfo else started.replace(tzinfo=UTC)
        return utc.timestamp(), manifest.stat().st_mtime
    except (OSError, ValueError, TypeError, KeyError):
        return 0.0, manifest.stat().st_mtime


class RunWriter:
    """The only writer of a run directory."""

    def __init__(
        self, path: Path, values: dict[str, Any], cases: list[Result], lock: IO[str], torn: bool = False
    ) -> None:
        self.path = path
        self.cases = cases
        self.torn = torn
        """Whether an incomplete last line was removed."""
        self._values = values
        self._lock = lock

    @property
    def manifest(self) -> Manifest:
        return Manifest.model_validate(self._values)

    @classmethod
    def create(cls, path: Path, manifest: Mapping[str, Any]) -> RunWriter:
        """Start a run in a new or empty directory. Raises `RunError` if it already has a run or other files."""
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
            _sync_names(path.parent)
            inside = {entry.name for entry in path.iterdir()}
        if inside and not inside & {_MANIFEST, _LOCK}:
            raise RunError(f"{path}: holds other files but no run; choose a new or an empty folder", remedy="elsewhere")
        lock = _locked(path)
        if (path / _MANIFEST).exists():
            lock.close()
            message = f"{path}: a run is already here; resume it, or choose another folder"
            raise RunError(message, remedy="resume or elsewhere")
        writer = cls(path, {"schema_version": SCHEMA_VERSION, **manifest}, [], lock)
        writer._write_manifest()
        with writing(path):
            (path / _CASES).touch()
        return writer

    @classmethod
    def resume(cls, path: Path) -> RunWriter:
        """Continue a run. An incomplete last line (after a power cut) is removed. Raises `RunError`."""
        manifest, values = _read_manifest(path)
        lock = _locked(path)
        cases, whole_bytes, torn = _read_cases(path / _CASES, manifest)
        if torn:
            with writing(path / _CASES), (path / _CASES).open("r+b") as file:
                file.truncate(whole_bytes)
        return cls(path, values, cases, lock, torn)

    def place_of(self, case: Result) -> tuple[str, str]:
        """The pair (case key, kind of machine) of a result. A run has at most one result for each pair."""
        machine = self._values.get("machines", {}).get(case.machine, {})
        return case.key, machine.get("kind", "")

    @property
    def worker_log(self) -> Path:
        return self.path / WORKER_LOG

    def append(self, cases: Sequence[Result]) -> None:
        """Append the cases of one point, and write them to disk before this method returns.

        A new case replaces a recorded case with the same `place_of`, for example if a point is measured again.
        """
        places = {self.place_of(case) for case in cases}
        kept = [case for case in self.cases if self.place_of(case) not in places]
        if len(kept) < len(self.cases):
            _replace(self.path / _CASES, _lines([*kept, *cases]))
        else:
            with writing(self.path / _CASES), (self.path / _CASES).open("ab") as file:
                file.write(_lines(cases).encode())
                file.flush()
                os.fsync(file.fileno())
        self.cases[:] = [*kept, *cases]

    def update_manifest(self, **values: Any) -> None:
        self._values |= values
        self._write_manifest()

    def close(self) -> None:
        """Release the lock, so that others can write."""
        with suppress(OSError):  # it holds no data
            self._lock.close()

    def _write_manifest(self) -> None:
        _replace(self.path / _MANIFEST, json.dumps(self._values, indent=2) + "\n")


def _experiment_of(path: Path) -> str | None:
    """Name of a run's experiment; None if the manifest does not name it or cannot be read."""
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
        message = f"{path}: another chunkbench process is writing here; wait for it or choose another folder"
        raise RunError(message, remedy="elsewhere") from None
    return lock


def _read_manifest(path: Path) -> tuple[Manifest, dict[str, Any]]:
    """The manifest, and the unchanged values of its file."""
    file = path / _MANIFEST
    try:
        values = from_json(file.read_bytes().removeprefix(BOM_UTF8), allow_inf_nan=False)
    except FileNotFoundError:
        raise RunError(f"{path}: not a run directory (no {_MANIFEST})") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{file}: cannot be read: {error}") from error
    version = values.get("schema_version") if isinstance(values, dict) else None
    if type(version) is not int or version not in _READABLE:
        known = f"{_READABLE[0]} to {_READABLE[-1]}"
        raise RunError(f"{file}: has schema version {version!r}, this chunkbench reads versions {known}")
    try:
        manifest = Manifest.model_validate(values)
    except ValidationError as error:
        raise RunError(f"{file}: damaged: {problem_of(error.errors()[0])}") from None
    if manifest.experiment.kind not in workload.names():
        known = ", ".join(workload.names())
        raise RunError(f"{file}: its experiment is of kind {manifest.experiment.kind!r}; this chunkbench knows {known}")
    return manifest, values


def _read_cases(path: Path, manifest: Manifest) -> tuple[list[Result], int, bool]:
    """The cases, the number of bytes of the whole lines, and whether an incomplete line follows them."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], 0, False
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from None
    model: type[Result] = workload.get(manifest.experiment.kind).result
    cases: list[Result] = []
    whole_bytes = 0
    for number, line in enumerate(data.splitlines(keepends=True), start=1):
        last, size = whole_bytes + len(line) == len(data), len(line)
        if number == 1:
            line = line.removeprefix(BOM_UTF8)
        try:
            if not line.endswith(b"\n"):
                raise ValueError("no end of line")
            if manifest.schema_version < _OWN_FIELDS:
                case = model.model_validate(model.from_older(from_json(line)))
            else:
                case = model.model_validate_json(line)
        except ValueError as error:
            if last and not _is_whole(line):
                return cases, whole_bytes, True
            problem = problem_of(error.errors()[0]) if isinstance(error, ValidationError) else error
            raise RunError(f"{path}:{number}: damaged: {problem}") from None
        cases.append(case if case.machine else case.model_copy(update={"machine": manifest.only_machine}))
        whole_bytes += size
    return cases, whole_bytes, False


def _is_whole(line: bytes) -> bool:
    """Whether a line was written completely. After a power cut, zeros and an end of line may replace the text."""
    try:
        from_json(line)
    except ValueError:
        return False
    return line.endswith(b"\n")


def _lines(cases: Sequence[Result]) -> str:
    return "".join(case.model_dump_json() + "\n" for case in cases)


def _replace(path: Path, text: str) -> None:
    """Replace a file atomically: readers, also after a power cut, find the old text or the new text, never a part."""
    temporary = path.with_suffix(".tmp")
    with writing(path):
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_names(path.parent)


def _sync_names(folder: Path) -> None:
    """Write the names in a folder to the disk. Does nothing if the folder may not be read, or if its file system cannot
    do this."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EINVAL):
            raise
