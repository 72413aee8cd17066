"""Tiny runs of each kind as real processes: killed at random moments, with disks that fail, cut by a power failure.

What a run started carries a mark, by which all of it is found.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from chunkbench import workloads
from chunkbench.bench.store import SCHEMA_VERSION, TORN, Run, RunWriter, open_run
from tests.command import chunkbench
from tests.torture.drawn import widened
from tests.torture.harm import library
from tests.torture.trials import Harm, Trial, Unavailable

MARK = "CHUNKBENCH_TORTURE"
CONFIG = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "model_type": "llama",
}  # fmt: skip
_TIMED = "dtype: float32\nbudget: 800ms\ncase_limit: 30s\nmax_rounds: 3\n"
EXPERIMENTS = {
    "memory": "kind: memory\nimplementations: [naive]\nbaseline: naive\n"
    "defaults: {heads: 2, head_dim: 16, n_c: 1, batch_size: 2}\nsweep:\n  - {n_p: [16, 32, 48], n_s: 16}\n",
    "replay": "kind: replay\nrequests: 12\narrival_seeds: 2\nbudget: 1m\nimplementations: [paged, prefix_tree]\n"
    "defaults: {n_c: 8, memory: 60000, n_p: 256}\nsweep:\n  - {n_s: 64, rate: [60, 120, 180]}\n",
    "decode": f"{_TIMED}implementations: [naive, chunk_attn]\n"
    "defaults: {n_c: 2, batch_size: 2, heads: 2, head_dim: 16, chunk_size: 16, threads: 1}\n"
    "sweep:\n  - {n_p: [16, 32, 48], n_s: 16}\n",
    "layer": f"kind: modules\n{_TIMED}defaults: {{model: config.json, n_p: 16, n_c: 2, threads: 1}}\n"
    "sweep:\n  - batch_size: [1, 2, 3]\n",
    "ring": "kind: ring\ndtype: float32\nbudget: 1s\ncase_limit: 30s\nrounds: 3\nimplementations: [one_process, ring]\n"
    "defaults: {ranks: 2, heads: 1, head_dim: 16, threads: 1}\nsweep:\n  - {n_p: [64, 96, 128]}\n",
    "serving": "kind: serving\nimplementations: [chunk_llama]\ndtype: float32\nbudget: 10m\nrequests: 6\n"
    "arrival_seeds: 1\nvocabulary: 100\n"
    "defaults: {model: config.json, n_p: 32, n_s: 16, n_c: 8, batch_size: 2}\nsweep:\n  - {rate: [300, 400, 500]}\n",
}
"""Kind of run -> its experiment, of `POINTS` points."""
POINTS = 3
ROWS = {"memory": 1, "replay": 2, "decode": 2, "layer": 3, "ring": 2, "serving": 1}
"""Rows of a point."""


def kinds() -> list[str]:
    """The kinds of runs with several processes that this environment has the packages for."""
    served = all(importlib.util.find_spec(name) for name in ("starlette", "uvicorn", "transformers"))
    return [kind for kind in EXPERIMENTS if kind != "memory" and (kind != "serving" or served)]


class Command:
    """A command that makes a run in a folder. `limit_s`: what takes longer hangs."""

    def __init__(self, folder: Path, out: Path, limit_s: float) -> None:
        self.folder, self.out, self.limit_s = folder, out, limit_s
        self.driver: subprocess.Popen[bytes]

    def spawn(self, words: Sequence[str], environment: dict[str, str], both: bool = False) -> None:
        """Start it; it resumes if the directory holds a run. `errors` has what it says, with `both` also its output."""
        resume = ["--resume"] if (self.out / "manifest.json").exists() else []
        (self.folder / "tmp").mkdir(exist_ok=True)
        with (self.folder / "errors.txt").open("wb") as errors:
            self.driver = subprocess.Popen(
                [*words, "--out", str(self.out), *resume], stdout=errors if both else subprocess.DEVNULL, stderr=errors,
                cwd=self.folder, env=os.environ | {"TMPDIR": str(self.folder / "tmp")} | environment,
            )  # fmt: skip

    def end(self) -> int:
        """Wait until the command ends. Returns its exit code."""
        try:
            return self.driver.wait(self.limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the run did not end within {self.limit_s:.0f} s: {self.errors}") from None

    @property
    def errors(self) -> str:
        """What the last command said."""
        return (self.folder / "errors.txt").read_text(errors="replace")

    def lines(self) -> list[bytes]:
        """The recorded lines, without an incomplete one."""
        cases = self.out / "cases.jsonl"
        lines = cases.read_bytes().splitlines(keepends=True) if cases.exists() else []
        return [line for line in lines if line.endswith(b"\n")]

    def check_rows(self, rows: int, finished: list[bytes]) -> Run:
        """The run has so many rows, each once, and those that were finished earlier unchanged. Returns it."""
        workloads.register()
        lines, run = self.lines(), open_run(self.out)
        kind = run.manifest.experiment.name
        assert not run.torn, f"{kind}: the last line is cut"
        assert not run.manifest.interrupted, f"{kind}: the run is not complete"
        assert len(lines) == rows, f"{kind}: {len(lines)} rows"
        assert len({case.key for case in run.cases}) == len(lines), f"{kind}: a row is there twice"
        for line in finished:
            assert lines.count(line) == 1, f"{kind}: a finished row changed: {line[:300]!r}"
        return run


class TinyRun(Command):
    """A run of a kind, and the processes that it started."""

    def __init__(self, kind: str, folder: Path, chance: random.Random, out: Path | None = None) -> None:
        """`out`: the run directory. In three of four runs, `chance` draws more axes, and the rows."""
        super().__init__(folder, out or folder / "run", limit_s=240.0)
        self.kind, self.spec = kind, folder / f"{kind}.yaml"
        (folder / "config.json").write_text(json.dumps(CONFIG))
        text = f"name: {kind}\n{EXPERIMENTS[kind]}"
        self.spec.write_text(widened(text, chance, folder) if chance.random() < 0.75 else text)
        self.close_fails = 0
        """Which call of `close` for a file of the run fails; 0: none."""

    def start(self, *more: str) -> None:
        environment = {MARK: str(self.folder)}
        if self.close_fails:
            environment |= {"LD_PRELOAD": str(library()), "TORTURE_FOLDER": str(self.out)}
            environment |= {"TORTURE_CLOSE": str(self.close_fails)}
        self.spawn([sys.executable, "-m", "chunkbench", "run", str(self.spec), "-q", *more], environment)

    @contextmanager
    def cleaned(self) -> Iterator[None]:
        """Leave nothing behind, whatever fails."""
        try:
            yield
        finally:
            for process in self.processes():
                with suppress(psutil.Error):
                    process.kill()

    def complete(self, *more: str) -> int:
        """Run the command from its start to its end."""
        self.start(*more)
        return self.end()

    def end(self) -> int:
        """The exit code; 0 also for a run without a failure in which no row supports the drawn axes."""
        code = super().end()
        return 0 if code == 3 and {json.loads(line)["status"] for line in self.lines()} == {"unsupported"} else code

    def finished(self) -> list[bytes]:
        """The lines of points that are on disk as a whole."""
        lines = self.lines()
        return lines[: len(lines) // ROWS[self.kind] * ROWS[self.kind]]

    def processes(self) -> list[psutil.Process]:
        """All live processes with the mark, the driver among them."""
        mark, found = f"{MARK}={self.folder}".encode(), []
        for pid in psutil.pids():
            with suppress(OSError, psutil.Error):
                process, environment = psutil.Process(pid), Path(f"/proc/{pid}/environ").read_bytes()
                if mark in environment.split(b"\0") and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def check_complete(self, finished: list[bytes]) -> None:
        """The run has all points, each once, and those that were finished earlier unchanged."""
        self.check_rows(POINTS * ROWS[self.kind], finished)

    def check_released(self, ports: set[int], limit_s: float = 15.0) -> None:
        """Nothing of the run lives, holds the lock, or listens."""
        end = time.monotonic() + limit_s
        while (left := self.processes()) and time.monotonic() < end:
            time.sleep(0.05)
        assert not left, f"{self.kind}: left over: {list(map(words_of, left))}"
        if (self.out / ".lock").exists():
            with (self.out / ".lock").open() as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise AssertionError(f"{self.kind}: the lock is held") from None
        # A process that ends loses its environment, and with it the mark, before its ports are closed.
        while (open_ports := ports & listening(psutil)) and time.monotonic() < end:
            time.sleep(0.05)
        assert not open_ports, f"{self.kind}: ports still open: {open_ports}"

    def ports(self) -> set[int]:
        """The ports on which its processes listen."""
        found = set()
        for process in self.processes():
            with suppress(psutil.Error):
                found |= listening(process)
        return found


def listening(who: Any) -> set[int]:
    """The ports on which a process, or with `psutil` itself any process, listens."""
    return {c.laddr.port for c in who.net_connections("tcp") if c.status == psutil.CONN_LISTEN}


def words_of(process: psutil.Process) -> list[str]:
    """Its command line; empty if it has ended."""
    with suppress(psutil.Error):
        return process.cmdline()
    return []


LONGEST_S = {"replay": 0.2, "decode": 1.0, "layer": 1.0, "ring": 1.0, "serving": 2.0}
"""How long after a point is on disk a process is killed, at most: about the time of a point."""
START_S = 8.0
"""The same after the start, where no point is on disk."""
FAILED = "crashed,error,timeout"


@contextmanager
def killed(most: int = 3, only: str = "", victims: Sequence[str] = ("driver", "another")) -> Iterator[Harm]:
    """A trial kills one process or several, one after the other, in a run whose kind goes round."""
    available = [only] if only else kinds()

    def harm(trial: Trial) -> int:
        run = TinyRun(available[trial.number % len(available)], trial.folder, trial.chance)
        with run.cleaned():
            return kills(run, trial, most, victims)

    yield harm


def kills(run: TinyRun, trial: Trial, most: int, victims: Sequence[str]) -> int:
    """How many processes were killed."""
    finished, ports, killed = list[bytes](), set[int](), 0
    run.start()
    for _ in range(trial.chance.randint(1, most)):
        victim = wait_for_moment(run, trial, victims)
        if victim is None:
            break
        ports |= run.ports()
        finished = check_kept(run, finished)
        with suppress(psutil.NoSuchProcess):
            victim.kill()
            killed += 1
        if victim.pid == run.driver.pid:
            run.driver.wait()
            run.check_released(ports)
            finished = check_kept(run, finished)
            run.start()
    code = run.end()
    if code == 2 and "--resume continues the run" in run.errors:  # a worker was killed before it had started
        code = run.complete()
    assert code in (0, 3), f"{run.kind}: exit code {code}: {run.errors}"
    finished = check_kept(run, finished)
    run.check_released(ports)
    if code == 3:
        # A point is measured again as a whole.
        size = ROWS[run.kind]
        points = [finished[first : first + size] for first in range(0, len(finished), size)]
        failed = FAILED.split(",")
        whole = [point for point in points if not any(json.loads(line)["status"] in failed for line in point)]
        finished = [line for point in whole for line in point]
        code = run.complete("--retry", FAILED)
        assert code == 0, f"{run.kind}: exit code {code} after --retry: {run.errors}"
    run.check_complete(finished)
    return killed


def wait_for_moment(run: TinyRun, trial: Trial, victims: Sequence[str]) -> psutil.Process | None:
    """Wait for a moment, then choose a process. None if the run ended before."""
    points = trial.chance.randrange(POINTS)
    wanted = trial.chance.choice(victims)
    delay = trial.chance.uniform(0, LONGEST_S[run.kind] if points else START_S)
    which = trial.chance.random()
    while len(run.finished()) < points * ROWS[run.kind] and run.driver.poll() is None:
        time.sleep(0.01)
    end = time.monotonic() + delay
    while run.driver.poll() is None:
        others = [process for process in run.processes() if process.pid != run.driver.pid]
        if time.monotonic() >= end and (wanted == "driver" or others):
            return psutil.Process(run.driver.pid) if wanted == "driver" else others[int(which * len(others))]
        time.sleep(0.01)
    return None


def check_kept(run: TinyRun, before: list[bytes]) -> list[bytes]:
    """The finished lines now; those of earlier are among them."""
    now = run.finished()
    lost = [line for line in before if line not in now]
    assert not lost, f"{run.kind}: {len(lost)} finished rows are gone or changed: {lost[0][:300]!r}"
    return now


CLOSES = 12
PAGES = 24
"""Pages of 4 KiB of a full disk, at most: a run and its report need about as many."""


@contextmanager
def disk_that_fails() -> Iterator[Harm]:
    """A trial harms the disk of one run in one way, then mends it and resumes the run."""
    library()
    with TemporaryDirectory() as folder:
        mount(Path(folder), "-t", "tmpfs", "-o", "size=4k", "tmpfs")
        unmount(Path(folder))
    # A run of one process is short. Where the moment counts, points have to take longer.
    others = (read_only, "replay"), (moved_away, "replay"), (closed_with_an_error, "memory")
    ways = [way for other in others for way in ((full, "memory"), (full, "memory"), other)]

    def harm(trial: Trial) -> None:
        place = trial.folder / "disk"
        place.mkdir()
        way, kind = ways[trial.number % len(ways)]
        run = TinyRun(kind, trial.folder, trial.chance, place / "run")
        with run.cleaned(), ExitStack() as mounts:
            mounts.callback(unmount, place)
            finished = way(run, trial, place)
            code = run.complete()
            assert code == 0, f"after the disk was mended: exit code {code}: {run.errors}"
            run.check_complete(finished)
            run.check_released(set())

    yield harm


def full(run: TinyRun, trial: Trial, place: Path) -> list[bytes]:
    """The disk has room for a random part of the run."""
    mount(place, "-t", "tmpfs", "-o", f"size={4 * trial.chance.randint(1, PAGES)}k", "tmpfs")
    finished = refused(run, run.complete())
    mount(place, "-o", "remount,size=8m")
    return finished


def read_only(run: TinyRun, trial: Trial, place: Path) -> list[bytes]:
    """The disk is read-only from a random moment."""
    mount(place, "-t", "tmpfs", "-o", "size=8m", "tmpfs")
    run.start()
    at_a_moment(run, trial)
    # Files that are open for writing forbid it to the mount itself; a second one hides it.
    mount(place, "--bind", str(place))
    mount(place, "-o", "remount,ro,bind")
    finished = refused(run, run.end())
    unmount(place, all_of_them=False)
    return finished


def moved_away(run: TinyRun, trial: Trial, place: Path) -> list[bytes]:
    """The run's folder is taken away at a random moment, and comes back."""
    run.start()
    at_a_moment(run, trial)
    away = place / "away"
    if not run.out.exists():
        return refused(run, run.end())
    run.out.rename(away)
    code = run.end()
    if run.out.exists():
        assert not (run.out / "cases.jsonl").exists(), "rows are in a folder that the run made a second time"
        shutil.rmtree(run.out)
    away.rename(run.out)
    return refused(run, code)


def closed_with_an_error(run: TinyRun, trial: Trial, place: Path) -> list[bytes]:
    """A random `close` reports an error, as network disks do."""
    run.close_fails = trial.chance.randint(1, CLOSES)
    finished = refused(run, run.complete())
    run.close_fails = 0
    return finished


def at_a_moment(run: TinyRun, trial: Trial) -> None:
    """Wait until a random number of points is on disk, and a little longer."""
    points, longer = trial.chance.randrange(POINTS), trial.chance.uniform(0, 0.3)
    while run.driver.poll() is None and not (run.out.exists() and len(run.finished()) >= points * ROWS[run.kind]):
        time.sleep(0.005)
    time.sleep(longer)


def refused(run: TinyRun, code: int) -> list[bytes]:
    """The command ended as it must: well, or with 2 and the path. Returns the finished lines."""
    assert code in (0, 2), f"exit code {code}: {run.errors}"
    assert "Traceback" not in run.errors, run.errors
    if code == 0:
        run.check_complete(run.finished())
    assert code == 0 or str(run.out) in run.errors, f"the message names no path: {run.errors}"
    return run.finished()


def mount(place: Path, *words: str) -> None:
    """Raises Unavailable where this process may not mount."""
    done = subprocess.run(["mount", *words, str(place)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"mount fails ({done.stderr.strip()}); root may mount")


def unmount(place: Path, all_of_them: bool = True) -> None:
    """Take away what is mounted on a folder; the uppermost alone, or all."""
    while subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False).returncode == 0:
        if not all_of_them:
            return


RECORDED = Path(__file__).parents[2] / "results" / "recorded"
CUTS = 100
"""A trial cuts at so many bytes, one after the other; the next trial goes on behind them."""
EACH = 20
"""One trial of so many lets the command itself resume a run that is cut."""
LINES = 4
"""So many lines of a recorded run are kept: the same code reads all of them."""


@contextmanager
def cut_off() -> Iterator[Harm]:
    """The trials go through every byte of the last two lines of recorded runs, the last lines of which are kept."""
    workloads.register()
    pieces = []
    for run in sorted(path.parent for path in RECORDED.glob("*/*/cases.jsonl")):
        if open_run(run).manifest.schema_version == SCHEMA_VERSION:  # those of older versions are not resumed
            *before, before_last, last = (run / "cases.jsonl").read_bytes().splitlines(keepends=True)
            if before:  # else a report of the cut run has no case, and says so
                pieces += [(run, first) for first in range(0, len(before_last + last), CUTS)]

    def harm(trial: Trial) -> int:
        if trial.number % EACH == EACH - 1:
            return resumed(trial)
        source, first = pieces[trial.number % len(pieces)]
        lines = (source / "cases.jsonl").read_bytes().splitlines(keepends=True)[-LINES:]
        return cut(source, lines, first, trial.folder / "run", trial.chance)

    yield harm


def cut(source: Path, lines: list[bytes], first: int, run: Path, chance: random.Random) -> int:
    """Cut at each byte of a piece of the last two lines, and once more for the report. Returns how often."""
    run.mkdir()
    shutil.copy(source / "manifest.json", run)
    path, whole = run / "cases.jsonl", b"".join(lines)
    path.write_bytes(whole)
    cases = open_run(run).cases
    start = sum(map(len, lines[:-2])) + first
    places = range(start, min(start + CUTS, len(whole)))
    ends = [sum(map(len, lines[:count])) for count in range(len(lines) + 1)]
    for kept_bytes in places:
        path.write_bytes(whole[:kept_bytes])
        kept = sum(end <= kept_bytes for end in ends[1:])
        opened = open_run(run)
        assert opened.cases == cases[:kept], f"{source} cut at byte {kept_bytes}: {len(opened.cases)} rows of {kept}"
        assert opened.torn == (kept_bytes not in ends), f"{source}, byte {kept_bytes}: it does not say that it is cut"
        writer = RunWriter.resume(run)
        assert writer.torn == opened.torn
        writer.append(cases[kept:])
        writer.close()
        again = open_run(run)
        assert again.cases == cases, f"{source} cut at byte {kept_bytes}: resumed, it has other rows"
        assert not again.torn, f"{source} cut at byte {kept_bytes}: resumed, its last line is still cut"
    path.write_bytes(whole[: chance.choice(places)])
    torn = open_run(run).torn
    done = chunkbench("report", str(run), "--format", "json")
    assert done.code == 0, done.stderr
    assert (TORN in done.stderr) == torn, f"the report does not say that a line is cut: {done.stderr}"
    return len(places) + 1


def resumed(trial: Trial) -> int:
    """A run, cut in its last two rows: the command says so, measures what is gone, and keeps the rest."""
    run = TinyRun("memory", trial.folder, trial.chance)
    assert run.complete() == 0, run.errors
    whole = (run.out / "cases.jsonl").read_bytes()
    *_, before_last, last = whole.splitlines(keepends=True)
    (run.out / "cases.jsonl").write_bytes(whole[: -trial.chance.randrange(1, len(before_last + last))])
    finished, torn = run.lines(), open_run(run.out).torn
    assert run.complete() == 0, run.errors
    assert (TORN in run.errors) == torn, f"the command does not say that a line was cut: {run.errors}"
    run.check_complete(finished)
    return 1
