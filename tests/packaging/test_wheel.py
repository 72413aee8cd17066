"""What a source distribution and the wheel built from it hold, and how that wheel behaves far from the checkout."""

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

pytestmark = pytest.mark.skipif(
    not (importlib.util.find_spec("scikit_build_core") and importlib.util.find_spec("nanobind")),
    reason="the build tools are not installed here; `make setup` installs them",
)


def python(code: str, *arguments: str | Path, cwd: Path = ROOT) -> None:
    subprocess.run([sys.executable, "-c", code, *arguments], cwd=cwd, check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    python("import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])", folder)
    return next(folder.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as pip would build it, from the unpacked source distribution."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        # Python 3.11 knows filters from its fourth release on.
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    source = next(path for path in folder.iterdir() if path.is_dir())
    # The compiler takes longer than all other tests together: only CI, which sets the variable, waits for it here.
    settings = {} if os.environ.get("CHUNKBENCH_REQUIRE_NATIVE") else {"wheel.cmake": "false"}
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


def far_away(site: Path, folder: Path, code: str) -> str:
    """Output of code that sees the wheel's files and what else is installed, from an empty folder."""
    # Without site (-S) no editable install of the checkout gets in between.
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
    kinds = (".py", ".j2", ".css", ".js")
    files = [path for path in (ROOT / "chunkbench").rglob("*") if path.suffix in kinds and path.is_file()]
    expected = {str(path.relative_to(ROOT)) for path in files}
    for folder in ("kernels", "baselines", "experiments", "results"):
        for pattern in ("**/*.py", "*.yaml", "paper/*.csv"):
            expected |= {f"chunkbench/{path.relative_to(ROOT)}" for path in (ROOT / folder).glob(pattern)}
    assert {name for name in names if name.endswith((*kinds, ".yaml", ".csv"))} == expected


def test_nothing_but_the_package_is_installed(wheel: Path) -> None:
    top = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == {"chunkbench"}


def test_results_are_the_papers_only_and_sources_of_the_native_module_stay_out(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    results = [name for name in names if name.startswith("chunkbench/results/")]
    assert all(name.startswith("chunkbench/results/paper/") or name.endswith("/__init__.py") for name in results)
    assert not [name for name in names if name.endswith((".cpp", ".h"))]


def test_the_source_distribution_can_be_worked_in(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        members = {name.partition("/")[2]: archive.getmember(name) for name in archive.getnames()}
    assert members["chunkbench/kernels"].issym()
    wanted = [
        "Makefile",
        "CMakeLists.txt",
        "constraints.txt",
        "scripts/set_up.py",
        "kernels/cpu/src/module.cpp",
        "LICENSE",
    ]
    assert not [name for name in wanted if name not in members]
    assert not [name for name in members if name.startswith(("results/recorded", "results/runs", ".venv", "build/"))]


def test_packages_and_data_are_found_from_an_empty_folder(site: Path, tmp_path: Path) -> None:
    code = """
from importlib.resources import files
import chunkbench.kernels.cpu, chunkbench.baselines
print(chunkbench.kernels.cpu.__file__)
print(files("chunkbench.results").joinpath("paper/table3.csv").is_file())
print(files("chunkbench.experiments").joinpath("table3.yaml").is_file())
"""
    origin, *found = far_away(site, tmp_path, code).splitlines()
    assert Path(origin).is_relative_to(site)
    assert found == ["True", "True"]


def test_our_folders_cannot_be_imported_by_their_bare_names(site: Path, tmp_path: Path) -> None:
    # transformers asks for a top-level `kernels`, which is another project's package.
    code = """
import chunkbench, importlib.util as util
found = [util.find_spec(name) for name in ("kernels", "baselines", "experiments", "results")]
print([spec.origin for spec in found if spec and spec.origin and spec.origin.startswith(chunkbench.__path__[0][:-10])])
"""
    assert far_away(site, tmp_path, code) == "[]"


def test_the_native_module_of_the_wheel_runs(site: Path, wheel: Path, tmp_path: Path) -> None:
    if "none-any" in wheel.name:
        pytest.skip("set CHUNKBENCH_REQUIRE_NATIVE=1 to build the native module into the wheel, too")
    code = (
        "from chunkbench.kernels import cpu; print(cpu.native().__file__, cpu.matrix_flops_per_s('float32', 1, 1) > 0)"
    )
    origin, positive = far_away(site, tmp_path, code).split()
    assert Path(origin).is_relative_to(site)
    assert positive == "True"
