"""The contents of a source distribution and of the wheel built from it; the wheel works in an empty folder."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.timeout(600),  # for compilers beside another test
    pytest.mark.skipif(
        not (importlib.util.find_spec("scikit_build_core") and importlib.util.find_spec("nanobind")),
        reason="the build tools are not installed here; `make setup` installs them",
    ),
]


def python(code: str, *arguments: str | Path, cwd: Path = ROOT) -> None:
    subprocess.run([sys.executable, "-c", code, *arguments], cwd=cwd, check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    python("import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])", folder)
    return next(folder.glob("*.tar.gz"))


# `make setup` compiles the same sources. It takes a minute, so only `make nightly` compiles them here, too.
@pytest.fixture(scope="module", params=["python", pytest.param("native", marks=pytest.mark.slow)])
def wheel(request: pytest.FixtureRequest, sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the unpacked source distribution, like pip builds it."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        # Python 3.11 has filters since 3.11.4.
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    source = next(path for path in folder.iterdir() if path.is_dir())
    settings = {"wheel.cmake": "false"} if request.param == "python" else {}
    code = f"import sys; from scikit_build_core.build import build_wheel; build_wheel(sys.argv[1], {settings})"
    python(code, folder, cwd=source)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's files, as in site-packages."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run_outside(site: Path, folder: Path, code: str) -> str:
    """Output of code that runs in an empty folder and imports the wheel's files and other installed packages."""
    # With -S (no site), an editable install of the checkout cannot hide the wheel.
    code = f"import sys; sys.path += {[str(site), sysconfig.get_path('purelib')]}\n{code}"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_wheel_holds_each_module_of_the_checkout_once(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert len(names) == len(set(names))
    suffixes = (".py", ".j2", ".css", ".js")
    files = [path for path in (ROOT / "chunkbench").rglob("*") if path.suffix in suffixes and path.is_file()]
    expected = {str(path.relative_to(ROOT)) for path in files}
    for folder in ("kernels", "baselines", "experiments", "results"):
        for pattern in ("**/*.py", "*.yaml", "paper/*.csv"):
            expected |= {f"chunkbench/{path.relative_to(ROOT)}" for path in (ROOT / folder).glob(pattern)}
    assert {name for name in names if name.endswith((*suffixes, ".yaml", ".csv"))} == expected


def test_the_wheel_holds_the_package_alone_with_the_papers_results_and_no_cpp_sources(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {top for top in (name.split("/")[0] for name in names) if not top.endswith(".dist-info")} == {"chunkbench"}
    results = [name for name in names if name.startswith("chunkbench/results/")]
    assert all(name.startswith("chunkbench/results/paper/") or name.endswith("/__init__.py") for name in results)
    assert not [name for name in names if name.endswith((".cpp", ".h"))]


def test_the_source_distribution_has_all_files_for_development(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        members = {name.partition("/")[2]: archive.getmember(name) for name in archive.getnames()}
    assert members["chunkbench/kernels"].issym()
    required = {"Makefile", "CMakeLists.txt", "constraints.txt", "scripts/set_up.py", "LICENSE"}
    assert required | {"kernels/cpu/src/module.cpp"} <= members.keys()
    assert not [name for name in members if name.startswith(("results/recorded", "results/runs", ".venv", "build/"))]


def test_packages_and_data_are_found_from_an_empty_folder(site: Path, tmp_path: Path) -> None:
    code = """
from importlib.resources import files
import chunkbench.kernels.cpu, chunkbench.baselines
print(chunkbench.kernels.cpu.__file__)
print(files("chunkbench.results").joinpath("paper/table3.csv").is_file())
print(files("chunkbench.experiments").joinpath("table3.yaml").is_file())
print(files("chunkbench.experiments").joinpath("texts/questions.jsonl").is_file())
"""
    origin, *data_found = run_outside(site, tmp_path, code).splitlines()
    assert Path(origin).is_relative_to(site)
    assert data_found == ["True", "True", "True"]


def test_our_folders_cannot_be_imported_by_their_bare_names(site: Path, tmp_path: Path) -> None:
    # transformers imports a top-level `kernels`, which is another project's package.
    code = """
import chunkbench, importlib.util as util
specs = [util.find_spec(name) for name in ("kernels", "baselines", "experiments", "results")]
print([spec.origin for spec in specs if spec and spec.origin and spec.origin.startswith(chunkbench.__path__[0][:-10])])
"""
    assert run_outside(site, tmp_path, code) == "[]"


@pytest.mark.parametrize("wheel", [pytest.param("native", marks=pytest.mark.slow)], indirect=True)
def test_the_native_module_of_the_wheel_runs(site: Path, tmp_path: Path) -> None:
    code = (
        "from chunkbench.kernels import cpu; print(cpu.native().__file__, cpu.matrix_flops_per_s('float32', 1, 1) > 0)"
    )
    origin, positive = run_outside(site, tmp_path, code).split()
    assert Path(origin).is_relative_to(site)
    assert positive == "True"
