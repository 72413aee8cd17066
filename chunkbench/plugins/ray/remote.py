"""Code that runs on the nodes of a cluster. Ray copies this code to the nodes, so that a node without ChunkBench can
report that ChunkBench is missing.

So this module imports modules of ChunkBench only inside functions, and answers with plain data.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

OUT = "out"
"""The folder for the result files of a command."""


def _as_started() -> None:
    """Undo settings of Ray, so that a node measures as without Ray: the number of OpenMP threads, and the GPUs that Ray
    hides from a task without a GPU."""
    try:
        before = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")  # the parent process is the raylet
    except OSError:
        return
    started_with = dict(pair.decode(errors="replace").split("=", 1) for pair in before if b"=" in pair)
    names = ["OMP_NUM_THREADS"]
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        names.append("CUDA_VISIBLE_DEVICES")
    for name in names:
        if name in started_with:
            os.environ[name] = started_with[name]
        else:
            os.environ.pop(name, None)
    with contextlib.suppress(ImportError):  # `probe` reports this error
        from chunkbench.bench.environment import respect_quota

        respect_quota()


def probe() -> dict[str, Any]:
    """The software and hardware of this node: Python, ChunkBench and its revision, PyTorch, the environment, the
    machine id."""
    _as_started()
    answer: dict[str, Any] = {"python": ".".join(map(str, sys.version_info[:2])), "problem": ""}
    try:
        from chunkbench.bench.environment import machine_id, read_environment
        from chunkbench.bench.environment.revision import code_digest
        from chunkbench.version import __version__
    except ImportError as error:
        answer["problem"] = f"ChunkBench cannot be imported there ({error})"
        return answer
    answer |= {"chunkbench": __version__, "revision": code_digest(".py")}
    try:
        environment = read_environment().model_dump(mode="json")
    except ImportError as error:
        answer["problem"] = f"PyTorch cannot be imported there ({error})"
        return answer
    return answer | {"environment": environment, "machine": machine_id(environment).id}


class Measurer:
    """An actor that measures passes on its node, one at a time. It serves one experiment after the other."""

    def __init__(self) -> None:
        _as_started()
        self._folder = Path(tempfile.mkdtemp(prefix="chunkbench-node-"))
        self._log = self._folder / "worker.log"
        self._log_sent = 0
        self._measurer: Any = None
        self._cases: Any = None
        self._text = ""
        self._budget: Any = None

    def state(self) -> tuple[str, float, float]:
        """Three values: a text that says what runs now, the share of the pass that is done, and the node's clock time
        in seconds."""
        return self._text, self._budget.share_done if self._budget else 0.0, time.time()

    def begin(self, job: bytes) -> dict[str, Any]:
        """Prepare to measure points.

        `job`: pickled experiment, target, all points that this node may have to measure, earlier rows, `RunOptions`.

        Returns the styles of the implementations, or the reason why nothing can be measured.
        """
        from chunkbench import workloads
        from chunkbench.bench import workload
        from chunkbench.bench.runner.passes import Workplace
        from chunkbench.run_error import CannotRunError, RunError

        self.end()
        workloads.register()
        experiment, target, points, earlier, options = pickle.loads(job)
        place = Workplace(self._log, earlier)
        self._text = "starting"
        try:
            self._measurer = workload.of(experiment).start(experiment, target, points, place, options)
        except RunError as error:
            return {"refused": str(error), "nothing runs": isinstance(error, CannotRunError), "log": self._new_log()}
        self._cases = {point: experiment.cases(point) for point in points}
        return {"styles": dict(self._measurer.styles), "log": self._new_log()}

    def measure(self, points: bytes, budget_s: float) -> dict[str, Any]:
        """Measure one pass. `points`: the points of the pass, as a pickled tuple. Returns the rows of each point,
        pickled."""
        from chunkbench.bench.runner.passes import Budget

        self._text, self._budget = "starting", Budget(budget_s)
        measured = self._measurer.measure(pickle.loads(points), self._cases, self._budget, self._announce)
        return {"measured": pickle.dumps(dict(measured)), "log": self._new_log()}

    def end(self) -> None:
        """Release the resources of the last experiment on the node."""
        if self._measurer is not None:
            self._measurer.close()
            self._measurer = None

    def leave(self) -> None:
        """End the experiment, and delete all files of this actor on the node."""
        self.end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _announce(self, text: str) -> None:
        self._text = text

    def _new_log(self) -> bytes:
        """The output of workers and servers since the last answer."""
        if not self._log.exists():
            return b""
        with self._log.open("rb") as file:
            file.seek(self._log_sent)
            lines = file.read()
        self._log_sent += len(lines)
        return lines


class RemoteCommand:
    """An actor that runs one command of ChunkBench on its node, in a new folder."""

    def __init__(self) -> None:
        _as_started()
        self._folder = Path(tempfile.mkdtemp(prefix="chunkbench-command-"))
        self._stderr = self._folder / "stderr"

    def state(self) -> str:
        """The last line that the command printed about its progress."""
        lines = self._stderr.read_text(errors="replace").splitlines() if self._stderr.exists() else []
        return lines[-1] if lines else ""

    def run(self, words: list[str], files: dict[str, bytes], checkout: bytes | None) -> dict[str, Any]:
        """Run `chunkbench WORDS` in a folder with `files`. Returns the exit code, the output, and the files of the
        folder `OUT`.

        `{project}` in `words` stands for a folder with a checkout of ChunkBench. If `checkout` (a bundle of git) is
        given, the folder holds the unpacked bundle. Else the folder is the checkout on this node.
        """
        from chunkbench.bench.child import ChildProcess
        from chunkbench.bench.environment.revision import PROJECT

        work, project = self._folder / "work", PROJECT
        work.mkdir()
        if checkout is not None:
            (self._folder / "bundle").write_bytes(checkout)
            project = self._folder / "project"
            _unbundle(self._folder / "bundle", project)
        write_files(work, files)
        command = [sys.executable, "-m", "chunkbench", *(word.replace("{project}", str(project)) for word in words)]
        child = ChildProcess(command, os.environ, self._stderr, pipes=True, polite=True, folder=work)
        stdout, _ = child.communicate()
        left = (path for path in (work / OUT).rglob("*") if path.is_file())
        answer = {
            "code": child.returncode,
            "files": {str(path.relative_to(work / OUT)): path.read_bytes() for path in left},
            "stdout": stdout.decode(errors="replace"),
            "stderr": self._stderr.read_text(errors="replace"),
        }
        shutil.rmtree(self._folder, ignore_errors=True)
        return answer


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    """Write files, given as path -> content, into a folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _unbundle(bundle: Path, project: Path) -> None:
    """Make a checkout with the same commit and the same uncommitted changes as the one that `remote_commands`
    packed."""
    from chunkbench.bench.environment.revision import git

    git(project.parent, "clone", "-q", "--no-checkout", str(bundle), str(project)).check_returncode()
    git(project, "checkout", "-q", "--detach", "origin/chunkbench-head").check_returncode()
    git(project, "read-tree", "-u", "--reset", "origin/chunkbench-tree").check_returncode()
    git(project, "reset", "-q", "origin/chunkbench-head").check_returncode()
