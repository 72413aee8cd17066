"""Known advisories about the versions that ChunkBench is made from."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.set_up import ROOT
from tests.torture.supply import pinned
from tests.torture.trials import Harm, Part, Unavailable
from tests.torture.wheelhouse import run

REPORT = ROOT / "build" / "torture" / "pip-audit.json"
KNOWN: dict[str, str] = {}
"""Advisory -> why it does not concern ChunkBench."""


@contextmanager
def advisories() -> Iterator[Harm]:
    """pip-audit's report of the pinned versions. Raises Unavailable."""
    with tempfile.TemporaryDirectory() as folder:
        report = audited(Path(folder))
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=1))
    packages = report["dependencies"]
    if all("skip_reason" in one for one in packages):
        raise Unavailable(f"a network to look advisories up in; pip-audit says: {packages[0]['skip_reason']}")
    yield lambda trial: check_advisories(packages)


def audited(folder: Path) -> Any:
    """Runs pip-audit; installs it into a folder if it is not there. Raises Unavailable."""
    program = shutil.which("pip-audit", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        venv.create(folder, with_pip=True)
        program = str(folder / "bin" / "pip-audit")
        if run([folder / "bin" / "pip", "install", "-q", "pip-audit"], folder).returncode:
            raise Unavailable("pip-audit, and a network to install it from: pip install pip-audit")
    pins = folder / "pins.txt"
    pins.write_text("".join(f"{name}=={version}\n" for name, version in pinned().items()))
    options = ["--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
    done = run([program, "--requirement", pins, *options], folder)
    if not done.stdout.startswith("{"):
        raise Unavailable(f"a network to look advisories up in; pip-audit says: {done.stderr[-300:]}")
    return json.loads(done.stdout)


def check_advisories(packages: Sequence[Any]) -> int:
    wrong = [f"{one['name']}: {one['skip_reason']}" for one in packages if "skip_reason" in one]
    wrong += [
        f"{one['name']} {one['version']}: {advice['id']}, mended in {', '.join(advice['fix_versions']) or 'no version'}"
        for one in packages
        for advice in one.get("vulns", [])
        if not {advice["id"], *advice["aliases"]} & {*KNOWN}
    ]
    assert not wrong, "\n".join(wrong)
    return len(packages)


PART = Part(
    "supply advisories",
    "pip-audit looks up every pinned version",
    "no advisory but those that are known not to matter",
    advisories,
    minutes=0,
)
