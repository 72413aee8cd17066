"""Nodes whose software differs are named before anything is measured; `--ship` sends ours."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from chunkbench.bench.store import open_run
from chunkbench.cli.main import cli
from chunkbench.cli.output import explain
from chunkbench.plugins.ray import connection
from chunkbench.plugins.ray.connection import Cluster
from chunkbench.plugins.ray.fleet import shipped
from chunkbench.run_error import RunError
from tests.plugins.ray.conftest import Raylets

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def bare(raylets: Raylets, tmp_path: Path) -> Iterator[Raylets]:
    """A cluster whose only node has all packages but ChunkBench."""
    folder = tmp_path / "bare"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    # Through a .pth file only the folder is seen, not the .pth file of the editable installation in it.
    (Path(site) / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["CHUNKBENCH_MACHINE"] = "bare"
    command = [
        python,
        "-m",
        "ray.scripts.scripts",
        "start",
        f"--address={raylets.ray.address}",
        "--num-cpus=1",
        "--block",
    ]
    node = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, cwd=tmp_path, start_new_session=True)
    try:
        while sum(one["Alive"] for one in raylets.ray.global_state.node_table()) < 2:
            assert node.poll() is None
            time.sleep(0.2)
        yield raylets
    finally:
        node.terminate()
        node.wait()


@pytest.mark.cluster
@pytest.mark.slow
def test_a_node_without_chunkbench_is_named_and_gets_ours_when_asked(
    bare: Raylets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", bare.ray.address)
    monkeypatch.chdir(tmp_path)  # Ray's workers look for modules in the driver's folder, which is on this host too
    words = ["run", "table3", "--set", "n_p=64", "--set", "n_s=0", "--set", "n_c=1", "--only", "naive"]
    words += ["--only", "chunk_attn", "--dtype", "float32", "--budget", "1s", "--on", "ray", "-q"]
    done = CliRunner().invoke(cli, [*words, "--out", str(tmp_path / "refused")], standalone_mode=False)
    assert isinstance(done.exception, RunError)
    told = explain(done.exception)
    assert "ChunkBench cannot be imported there (No module named 'chunkbench" in told
    assert "--ship sends this ChunkBench to them" in told
    assert not (tmp_path / "refused").exists()
    done = CliRunner().invoke(cli, [*words, "--ship", "--out", str(tmp_path / "run")], standalone_mode=False)
    assert done.exception is None, done.output
    run = open_run(tmp_path / "run")
    assert {case.implementation: case.status in ("ok", "noisy") for case in run.cases} == {
        "naive": True,
        "chunk_attn": True,
    }
    assert {case.machine for case in run.cases} == {"bare"}
    assert run.manifest.machines["bare"].model_dump()["native"]["built"]


@pytest.mark.cluster
@pytest.mark.slow
def test_another_revision_is_named_once_for_all_nodes(raylets: Raylets, monkeypatch: pytest.MonkeyPatch) -> None:
    raylets.add("a", "b")
    cluster = raylets.connect()
    assert [node.machine for node in cluster.nodes(None, print)]
    monkeypatch.setattr(connection, "code_digest", lambda *_: "other")
    with pytest.raises(RunError) as raised:
        cluster.nodes(None, print)
    assert str(raised.value).count("its ChunkBench is another revision") == 2


def test_without_a_cluster_the_message_says_how_to_start_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    pytest.importorskip("ray")
    with pytest.raises(RunError, match=r"no Ray cluster at 127.0.0.1:9: .*`ray start --head`"):
        Cluster()


def test_a_cluster_that_refuses_may_want_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")

    def refuses(*_: object, **__: object) -> None:
        raise ConnectionError("Failed to connect to Ray cluster at 127.0.0.1")

    monkeypatch.setattr(ray, "init", refuses)  # the real one takes half a minute to say so
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(RunError, match=r"Failed to connect .*RAY_AUTH_MODE=token"):
            Cluster()


def test_nothing_is_sent_unless_it_is_wanted() -> None:
    with shipped(False) as runtime:
        assert runtime == {}
    with shipped(True) as runtime:
        folder = Path(runtime["working_dir"])
        assert (folder / "chunkbench" / "cli" / "main.py").is_file()
        (metadata,) = folder.glob("*.dist-info")
        assert "chunkbench = chunkbench.plugins.vllm:register" in (metadata / "entry_points.txt").read_text()
    assert not folder.exists()


@pytest.mark.parametrize("option", [["--machines", "each"], ["--machine", "x"], ["--alone"], ["--ship"]])
def test_options_of_clusters_need_a_cluster(option: list[str]) -> None:
    done = CliRunner().invoke(cli, ["run", "smoke", *option])
    assert done.exit_code == 2
    assert f"{option[0]} belongs to --on ray" in done.output


def test_another_place_is_refused() -> None:
    done = CliRunner().invoke(cli, ["run", "smoke", "--on", "slurm"])
    assert done.exit_code == 2
    assert "write local, ray, or ray://HOST:PORT" in done.output


def test_without_ray_the_message_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("raise ImportError('no ray')\n")
    done = subprocess.run(
        [sys.executable, "-m", "chunkbench", "run", "smoke", "--on", "ray"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "pip install 'chunkbench[ray]'" in done.stderr
