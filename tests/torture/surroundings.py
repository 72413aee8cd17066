"""Commands in the environments that hooks, CI, launchers, notebooks and containers bring."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click

from chunkbench.cli.main import cli
from tests.torture.drawn import widened
from tests.torture.runs import EXPERIMENTS
from tests.torture.trials import Harm, Trial

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "results/recorded/epyc-zen4-2-cores/constrained"
COMMANDS = (
    "list implementations", "list --format json", "validate {experiment}", "report {recorded} --format markdown",
    "claims {recorded}", "compare {recorded} {recorded}", "prompts {prompts} --format json", "doctor",
    "run {experiment} --out {out}", "run {replay} --out {out}", "history {recorded} {recorded}", "reproduce --dry-run",
    "completion bash", "load http://127.0.0.1:9 --requests 1",
    *(f"{name} --help" for name in cli.list_commands(click.Context(cli))),
)  # fmt: skip
"""All commands; those that take little do their work."""
LIKELY = {"load": 2, "doctor": None}
"""Exit codes that are right; None: those of a machine that lacks something, too."""


@dataclass(frozen=True)
class Surroundings:
    """What differs from a plain shell."""

    name: str
    variables: dict[str, str | None] = field(default_factory=dict)
    """None: removed. `{folder}`: an empty folder; `{locked}`: one that cannot be written."""
    closed: tuple[int, ...] = ()
    """Standard streams that are closed."""
    files: int | None = None
    """Most open files."""
    user: int | None = None
    """Run as this user, who has no entry anywhere."""
    inside: tuple[str, ...] = ()
    """A command that runs the command; the surroundings are left out where it does not work."""
    named: str = ""
    """What a message must name where the command cannot work."""

    def prepare(self) -> None:
        """In the child process."""
        if self.files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.files, self.files))
        for stream in self.closed:
            os.close(stream)
        if self.user is not None:
            os.setgid(self.user)
            os.setuid(self.user)


def _set(name: str, **variables: str | None) -> Surroundings:
    return Surroundings(name, variables, named=next(iter(variables), ""))


ENVIRONMENTS = (
    _set("hook of another repository", GIT_DIR="{folder}/.git", GIT_WORK_TREE="{folder}"),
    _set("hook of this one", GIT_INDEX_FILE="{folder}/index", GIT_PREFIX="docs/"),
    _set("git with settings", GIT_CONFIG_COUNT="1", GIT_CONFIG_KEY_0="core.bare", GIT_CONFIG_VALUE_0="true"),
    _set("git that asks", GIT_ASKPASS="/bin/false", GIT_PAGER="cat"),
    _set("threads bound close", OMP_PROC_BIND="close", OMP_PLACES="cores"),
    _set("threads bound by list", GOMP_CPU_AFFINITY="0"),
    _set("threads spread", OMP_PROC_BIND="spread"),
    _set("one thread", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1"),
    _set("nested threads", OMP_NUM_THREADS="2,1", OMP_DYNAMIC="true"),
    _set("pip for a user", PIP_USER="1"),
    _set("pip with a prefix", PIP_PREFIX="{folder}", PIP_REQUIRE_VIRTUALENV="1"),
    _set("proxy", http_proxy="http://127.0.0.1:9", https_proxy="http://127.0.0.1:9", HTTP_PROXY="http://127.0.0.1:9"),
    _set("proxy for all", ALL_PROXY="socks5://127.0.0.1:9"),
    _set("a folder of packages", PYTHONPATH="{folder}"),
    _set("a file as folder of packages", PYTHONPATH="/etc/passwd"),
    _set("warnings are errors", PYTHONWARNINGS="error"),
    _set("development mode", PYTHONDEVMODE="1"),
    _set("no assertions", PYTHONOPTIMIZE="2"),
    _set("no byte code", PYTHONDONTWRITEBYTECODE="1", PYTHONPYCACHEPREFIX="{locked}"),
    _set("fixed hashes", PYTHONHASHSEED="0"),
    _set("unbuffered", PYTHONUNBUFFERED="1", PYTHONFAULTHANDLER="1"),
    _set("no home", HOME=None),
    _set("home is the root", HOME="/"),
    _set("home that cannot be written", HOME="{locked}", XDG_CONFIG_HOME="{locked}", XDG_CACHE_HOME="{locked}"),
    _set("relative home", HOME="."),
    _set("temporary folder that cannot be written", TMPDIR="{locked}"),
    _set("temporary folder that is not there", TMPDIR="/nowhere"),
    _set("C", LC_ALL="C", LANG="C"),
    _set("C without UTF-8", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0"),
    _set("POSIX", LC_ALL="POSIX", PYTHONIOENCODING="ascii"),
    _set("a locale that is not there", LC_ALL="xx_YY.UTF-8"),
    _set("20 columns", COLUMNS="20", LINES="5"),
    _set("no columns", COLUMNS="0"),
    _set("columns that are no number", COLUMNS="wide"),
    _set("dumb terminal", TERM="dumb"),
    _set("no terminal", TERM=None, NO_COLOR="1"),
    _set("forced colours", FORCE_COLOR="1", CLICOLOR_FORCE="1"),
    _set("a notebook", MPLBACKEND="module://matplotlib_inline.backend_inline", JPY_PARENT_PID="1"),
    _set("a launcher that is not ours", SLURM_PROCID="1", SLURM_NTASKS="2", LOCAL_RANK="1"),
    _set("workers of web servers", WEB_CONCURRENCY="auto"),
    _set("an instruction set", ONEDNN_MAX_CPU_ISA="AVX2", ATEN_CPU_CAPABILITY="default"),
    _set("malloc", MALLOC_ARENA_MAX="1", GLIBC_TUNABLES="glibc.malloc.hugetlb=1"),
    _set("no GPU", CUDA_VISIBLE_DEVICES=""),
    _set("a time zone", TZ="Asia/Kolkata"),
    _set("no path", PATH=""),
    Surroundings("64 open files", files=64, named="open files"),
    Surroundings(
        "no shared memory",
        inside=("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o ro none /dev/shm && exec "$@"', "sh"),
        named="/dev/shm",
    ),
    Surroundings("closed standard input", closed=(0,)),
    Surroundings("closed standard output", closed=(1,)),
    Surroundings("closed standard error", closed=(2,)),
    Surroundings("closed standard streams", closed=(0, 1, 2)),
    Surroundings("a user without a name", {"HOME": None, "USER": None, "LOGNAME": None}, user=54321, named="HOME"),
)


def harm(trial: Trial) -> None:
    for name in ("decode", "replay"):
        text = f"name: {name}\n{EXPERIMENTS[name]}"
        (trial.folder / f"{name}.yaml").write_text(widened(text, trial.chance, trial.folder))
    check(trial.chance.choice(ENVIRONMENTS), trial.chance.choice(COMMANDS).split(), trial.folder)


def check(around: Surroundings, command: list[str], folder: Path) -> None:
    """Raise AssertionError unless a command works, or says in few lines what of its surroundings is in its way."""
    if around.user is not None and (os.getuid() != 0 or not _readable(Path(sys.executable).resolve())):
        return
    if around.inside and subprocess.run([*around.inside, "true"], capture_output=True, check=False).returncode:
        return
    places = {name: folder / name for name in ("folder", "locked", "out")}
    for name in ("folder", "locked"):
        places[name].mkdir()
    os.chmod(folder, 0o777)
    (folder / "prompts.jsonl").write_text("[1, 2, 3]\n[1, 2, 4]\n")
    files = {"experiment": "decode.yaml", "replay": "replay.yaml", "prompts": "prompts.jsonl"}
    words = {name: folder / file for name, file in files.items()} | places | {"recorded": RECORDED}
    places["locked"].chmod(0o500)
    environment = {name: value for name, value in os.environ.items() if name not in around.variables}
    environment |= {name: value.format(**words) for name, value in around.variables.items() if value is not None}
    done = subprocess.run(
        [*around.inside, sys.executable, "-m", "chunkbench", *(word.format(**words) for word in command)],
        cwd=folder, env=environment,
        stdin=subprocess.DEVNULL, capture_output=True, preexec_fn=around.prepare, timeout=180, check=False,
    )  # fmt: skip
    said = (done.stdout + done.stderr).decode(errors="replace")
    told = f"{around.name}: chunkbench {' '.join(command)}: exit code {done.returncode}\n{said[-3000:]}"
    assert "Traceback (most recent call last)" not in said, told
    right = 0 if "--help" in command else LIKELY.get(command[0], 0)
    if right is not None and done.returncode != right:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        assert done.returncode in (1, 2, 3), told
        assert around.named, told
        assert any(around.named in line for line in lines), told


def _readable(path: Path) -> bool:
    """Whether everybody may run a file."""
    return all(place.stat().st_mode & 0o001 for place in (path, *path.parents))


@contextmanager
def odd_environments() -> Iterator[Harm]:
    yield harm
