"""What `doctor` finds, and how noise is noticed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from chunkbench.bench.environment import Diagnosis, NoiseMeter, diagnose, doctor, heavy_processes, noise, why_no_gpu
from chunkbench.bench.environment.cpu import Cpu
from chunkbench.bench.environment.software import Native, Torch
from tests.bench.environment.test_cpu_and_memory import library

CPU = Cpu(
    model="x", vendor="GenuineIntel", architecture="x86_64", sockets=1, cores=4, threads=8, usable_threads=4, smt=True,
    l1d_bytes=1, l2_bytes=1, l3_bytes=1, numa_nodes=1, governor="powersave", turbo=True, isa=("avx2", "avx512_bf16"),
)  # fmt: skip
TORCH = Torch(version="2.13.0+cpu", threads=4, capability="AVX2", blas="mkl", mkl="1", onednn="3", cuda=None)


def test_every_finding_that_is_not_ok_has_a_remedy(tmp_path: Path) -> None:
    findings = diagnose(tmp_path / "results")
    titles = {finding.title for finding in findings}
    assert {"Python", "torch", "native module", "read bandwidth", "threads", "memory"} <= titles
    assert {"disk", "results", "load", "steal"} <= titles
    assert all(finding.remedy for finding in findings if finding.level != "ok")
    assert all(finding.detail for finding in findings)


def test_without_torch_there_is_one_error_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    findings = diagnose()
    assert [(finding.level, finding.title) for finding in findings][-1] == ("error", "torch")
    assert "pip install" in findings[-1].remedy


def torch_of(version: str, threads: int = 4, cuda: str | None = None) -> Torch:
    return TORCH.model_copy(update={"version": version, "threads": threads, "cuda": cuda})


@pytest.mark.parametrize(
    ("found", "level"),
    [
        (doctor.check_torch(torch_of("2.5.1+cu121")), "error"),
        (doctor.check_torch(torch_of("2.10.0a0+git1")), "ok"),
        (doctor.check_threads(torch_of("2.13.0", threads=4), CPU), "ok"),
        (doctor.check_threads(torch_of("2.13.0", threads=8), CPU), "warn"),
        (doctor.check_memory(2 << 30), "warn"),
        (doctor.check_memory(8 << 30), "ok"),
        (next(doctor.check_clock(CPU)), "warn"),
        (next(doctor.check_clock(CPU.model_copy(update={"governor": None}))), "ok"),
    ],
)
def test_what_a_machine_has_is_judged(found: Diagnosis, level: str) -> None:
    assert found.level == level


@pytest.mark.parametrize(("compiler", "remedy"), [("c++", "make setup, in"), (None, "apt install g++")])
def test_the_remedy_for_a_missing_native_module_depends_on_the_compiler(
    compiler: str | None, remedy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "read_native", lambda: Native(built=False, reason="not built"))
    found = doctor_with(tmp_path, compiler, monkeypatch, doctor.check_native)
    assert found.level == "warn"
    assert found.remedy.startswith(remedy)


def doctor_with(
    folder: Path, compiler: str | None, monkeypatch: pytest.MonkeyPatch, check: Callable[[], Diagnosis]
) -> Diagnosis:
    """A check on a machine with this compiler alone."""
    if compiler:
        (folder / compiler).write_text("#!/bin/sh\n")
        (folder / compiler).chmod(0o755)
    with monkeypatch.context() as machine:
        machine.setenv("PATH", str(folder))
        machine.delenv("CC", raising=False)
        return check()


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    assert doctor.check_writing(tmp_path / "not" / "yet" / "there").level == "ok"
    (tmp_path / "file").touch()
    assert doctor.check_writing(tmp_path / "file" / "results").level == "error"


def torch_with(
    cuda: str | None, works: bool = True, error: str = "", capability: tuple[int, int] = (9, 0), built: str = ""
) -> Any:
    """A `torch` of this build on a machine with one GPU."""

    def init() -> None:
        if error:
            raise RuntimeError(error)

    properties = SimpleNamespace(name="X", total_memory=80 << 30, major=capability[0], minor=capability[1])
    device = SimpleNamespace(
        is_available=lambda: works,
        init=init,
        get_device_capability=lambda: capability,
        get_arch_list=built.split,
        device_count=lambda: 1,
        get_device_properties=lambda index: properties,
    )
    return SimpleNamespace(__version__="2.6", version=SimpleNamespace(cuda=cuda), cuda=device)


OLD_GPU = {"capability": (7, 0), "built": "sm_80 compute_90"}


@pytest.mark.parametrize(
    ("torch", "reason"),
    [
        (torch_with(None, works=False), "is built for CPUs; install the build for CUDA"),
        (torch_with("13.0", works=False, error="The NVIDIA driver is too old (11040)."), "driver is too old (11040)"),
        (torch_with("13.0", works=False), "for CUDA 13.0, sees no NVIDIA GPU"),
        (torch_with("13.0", **OLD_GPU), "has no code for this GPU (sm_70), only for sm_80, compute_90"),
        (torch_with("13.0", capability=(8, 9), built="sm_80"), ""),
        (torch_with("13.0", capability=(9, 0), built="sm_90a"), ""),
        (torch_with("13.0", capability=(12, 0), built="compute_90"), ""),
        (torch_with("13.0"), ""),
    ],
)
def test_why_pytorch_computes_on_no_gpu(torch: Any, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert reason in why_no_gpu()
    assert bool(reason) == bool(why_no_gpu())


@pytest.mark.parametrize(
    ("torch", "others", "compiler", "words"),
    [
        (torch_with("13.0", **OLD_GPU), 2, "gcc", "cannot compute on it"),
        (torch_with("13.0"), None, "gcc", "its clocks cannot be read"),
        (torch_with("13.0"), 2, None, "Triton cannot compile"),
        (torch_with("13.0"), 2, "gcc", "2 other processes compute on it"),
    ],
)
def test_the_finding_for_a_gpu_with_an_obstacle(
    torch: Any, others: int | None, compiler: str | None, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    held = [(os.getpid(), 5), *((10**9 + number, 5) for number in range(others or 0))]
    for name, module in (("torch", torch), ("pynvml", None if others is None else library(held))):
        monkeypatch.setitem(sys.modules, name, module)
    found = doctor_with(tmp_path, compiler, monkeypatch, doctor.check_gpu)
    assert found.level == "warn"
    assert words in found.detail


SPIN = """if True:
    import sys, time
    with open("/proc/self/comm", "w") as name:
        name.write(sys.argv[1])
    end = time.time() + 20
    while time.time() < end:
        pass
"""
needs_names = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process name itself by a file")


@pytest.fixture
def spinner() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-S", "-c", SPIN, "cb-ours"]) as process:
        time.sleep(0.2)
        yield process
        process.kill()


class Machine:
    """Takes the place of psutil and of the clock: two CPUs and one process, whose times are set by hand."""

    Error = psutil.Error

    def __init__(self) -> None:
        self.now = 100.0
        self.user = self.steal = self.own = self.own_children = 10.0

    def monotonic(self) -> float:
        return self.now

    def cpu_times(self) -> SimpleNamespace:
        idle = 2 * self.now - self.user - self.steal
        return SimpleNamespace(user=self.user, system=0.0, nice=0.0, irq=0.0, softirq=0.0, idle=idle, steal=self.steal)

    def Process(self, pid: int) -> SimpleNamespace:
        times = SimpleNamespace(user=self.own, system=0.0, children_user=self.own_children, children_system=0.0)
        return SimpleNamespace(cpu_times=lambda: times)


def test_steal_and_foreign_load_over_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, meter = Machine(), NoiseMeter()
    for name in ("psutil", "time"):
        monkeypatch.setattr(noise, name, machine)
    with pytest.raises(RuntimeError, match="without start"):
        meter.stop()
    meter.start()
    machine.own += 0.01  # a coarse tick makes no negative load
    assert meter.stop()["foreign_cpus"] == 0.0
    machine.now += 10  # 20 CPU seconds: 12 busy and 1 stolen; 7 of the 12 are ours, 2 of these of an ended worker
    machine.user += 12
    machine.own += 4.99
    machine.own_children += 2
    machine.steal += 1
    reading = meter.stop()
    assert (reading["steal_fraction"], reading["foreign_cpus"]) == pytest.approx((0.05, 0.5))


@pytest.mark.serial
@needs_names
def test_a_busy_process_is_foreign_unless_its_pid_is_given(spinner: subprocess.Popen[bytes]) -> None:
    foreign, ours = NoiseMeter(), NoiseMeter([spinner.pid])
    before = psutil.Process(spinner.pid).cpu_times().user
    started = time.monotonic()
    foreign.start()
    ours.start()
    load, _ = doctor.check_noise()
    readings = foreign.stop()["foreign_cpus"], ours.stop()["foreign_cpus"]
    spent = (psutil.Process(spinner.pid).cpu_times().user - before) / (time.monotonic() - started)
    assert spent > 0.1, "the spinner did not run"
    assert readings[0] - readings[1] == pytest.approx(spent, abs=0.15)
    assert (load.level, load.remedy) == ("warn", "stop other programs before measuring")


@needs_names
def test_heavy_processes_have_short_names_and_are_neither_ours_nor_excluded(
    spinner: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise, "HEAVY", 0.02)  # on a busy machine a process may not get a fifth of a CPU
    # The processes are no descendants, because their parent ends at once. With an inherited pipe, `run` would wait.
    orphans = f"""if True:
        import subprocess, sys
        for name in ("cb-kernel/0:1", "/opt/cb-program"):
            command = [sys.executable, "-S", "-c", {SPIN!r}, name]
            print(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)"""
    done = subprocess.run([sys.executable, "-c", orphans], capture_output=True, text=True, check=True)
    pids = [int(pid) for pid in done.stdout.split()]
    try:
        heavy = heavy_processes(interval_s=0.6)
        assert {"cb-kernel", "cb-program"} <= set(heavy)
        assert "cb-ours" not in heavy
        assert not any("/" in entry for entry in heavy)
        assert not {"cb-kernel", "cb-program"} & set(heavy_processes(pids, interval_s=0.1))
    finally:
        for pid in pids:
            os.kill(pid, 9)
