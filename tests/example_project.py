"""The example project, which belongs to somebody else: installed, or committed, in temporary folders, or slower."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.command import git

EXAMPLE = Path(__file__).parents[1] / "examples" / "my-kernel"
GROUP = "chunkbench.baselines"


def install(project: Path, site: Path, *, in_place: bool) -> None:
    """Put a project into a folder of packages like pip does, without building it."""
    info = site / "my_kernel-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-kernel\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nmy_kernel = my_kernel:MyKernel\n")
    record = ["my_kernel-0.1.dist-info/METADATA,,", "my_kernel-0.1.dist-info/entry_points.txt,,"]
    if in_place:
        origin = {"url": project.as_uri(), "dir_info": {"editable": True}}
        (info / "direct_url.json").write_text(json.dumps(origin))
    else:
        shutil.copy(project / "src" / "my_kernel.py", site)
        record += ["my_kernel.py,,", "../../../bin/my-kernel,,"]
    (info / "RECORD").write_text("\n".join(record) + "\n")


@dataclass(frozen=True)
class Repository:
    """A git repository of the example, installed in place for programs that run with `environment`."""

    path: Path
    environment: dict[str, str]

    @property
    def module(self) -> Path:
        return self.path / "src" / "my_kernel.py"

    def git(self, *words: str) -> str:
        return git(self.path, *words)


def committed_example(folder: Path, budget: str = "20s") -> Repository:
    """The example with one commit, below `folder`; its experiment has this budget."""
    path, site = folder / "my-kernel", folder / "site"
    shutil.copytree(EXAMPLE, path)
    gate = path / "gate.yaml"
    gate.write_text(gate.read_text().replace("budget: 20s", f"budget: {budget}"))
    search = os.pathsep.join([str(site), str(path / "src")])
    repository = Repository(path, os.environ | {"PYTHONPATH": search})
    repository.git("init", "-q")
    repository.git("add", "-A")
    repository.git("commit", "-qm", "base")
    install(path, site, in_place=True)
    return repository


_SLOWER = """

import time as _time
_fast, _matrix = MySession.decode, torch.full((32, 32), 1 / 32)

def _slow(self, q, out):
    started = _time.perf_counter()
    _fast(self, q, out)
    until = _time.perf_counter() + {share} * (_time.perf_counter() - started)
    while _time.perf_counter() < until:
        torch.mm(_matrix, _matrix)

MySession.decode = _slow
"""


def slower_by(share: float) -> str:
    """Code to append to the example's module: calls take 1 + `share` times as long.

    It does real work, so a load on the machine slows it as well.
    """
    return _SLOWER.format(share=share)
