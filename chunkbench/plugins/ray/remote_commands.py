"""Runs whole commands on nodes of a cluster: `regress`, which must measure both revisions on one machine, and
`tune`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from chunkbench.bench.environment.revision import git
from chunkbench.bench.store import writing
from chunkbench.plugins.ray import remote
from chunkbench.plugins.ray.connection import Cluster, lines_of
from chunkbench.plugins.ray.nodes import Node
from chunkbench.run_error import RunError

PROJECT = "{project}"
"""In the words of a command, this placeholder stands for the project's folder on the node."""
_POLL_S = 1.0


@dataclass(frozen=True)
class CommandResult:
    code: int
    stdout: str
    stderr: str
    files: dict[str, bytes]
    """Path -> content, for all files of the command's folder `remote.OUT`."""

    def unpack(self, folder: Path) -> None:
        """Write the files into a folder. Raises `RunError`."""
        with writing(folder):
            remote.write_files(folder, self.files)


def run_remote_command(
    cluster: Cluster,
    node: Node,
    words: Sequence[str],
    files: dict[str, bytes],
    checkout: bytes | None,
    log: Callable[[str], None],
) -> CommandResult:
    """Run `chunkbench WORDS` on a node that does no other work of this run, in a folder that holds `files`.

    `checkout`: a result of `packed_checkout`. `log` receives the lines of the command's progress. Raises `RunError` if
    the node is lost. Ctrl-C ends the command.
    """
    ray = cluster.ray
    share = node.resources
    actor = cluster.start_actor(remote.RemoteCommand, share, num_cpus=share.cpus, num_gpus=share.gpus)
    running = actor.run.remote(list(words), files, checkout)
    last = ""
    try:
        while not ray.wait([running], timeout=_POLL_S)[0]:
            cluster.check_head()
            line = ray.get(actor.state.remote())
            if line != last:
                last = line
                log(f"{node.machine}: {line}")
        answer = ray.get(running)
    except ray.exceptions.RayError as error:
        raise RunError(f"{node.name} was lost while the command ran: {lines_of(error)[-1]}") from None
    finally:
        ray.kill(actor, no_restart=True)
    return CommandResult(**answer)


def packed_checkout(project: Path, base: str) -> bytes:
    """A git checkout with its uncommitted and new files, and the commit `base`, packed so that a node can unpack them.

    Nothing is written into the checkout. Raises `RunError` if git cannot read it.
    """
    with tempfile.TemporaryDirectory(prefix="chunkbench-bundle-") as temporary:
        bare = Path(temporary) / "bare"
        work = {"GIT_DIR": str(bare), "GIT_WORK_TREE": str(project), "GIT_INDEX_FILE": str(Path(temporary) / "index")}
        author = {f"GIT_{who}_{what}": "chunkbench" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}

        def run(*words: str, **environment: str) -> str:
            done = git(project, *words, **environment)
            if done.returncode:
                raise RunError(f"{project}: git {words[0]}: {done.stderr.strip()}")
            return done.stdout.strip()

        head = run("rev-parse", "HEAD")
        run("clone", "-q", "--bare", "--shared", str(project), str(bare))
        run("add", "-A", **work)
        tree = run("commit-tree", run("write-tree", **work), "-p", head, "-m", "files", **work, **author)
        heads = {"chunkbench-head": head, "chunkbench-tree": tree, "chunkbench-base": base}
        for name, commit in heads.items():
            run("update-ref", f"refs/heads/{name}", commit, GIT_DIR=str(bare))
        bundle = Path(temporary) / "bundle"
        run("bundle", "create", "-q", str(bundle), *heads, GIT_DIR=str(bare))
        return bundle.read_bytes()
