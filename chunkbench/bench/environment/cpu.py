"""Reads what the operating system knows about the CPU, from /proc and /sys. On systems other than Linux, many fields
stay None."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from chunkbench.bench.environment.cgroups import cpu_quota, read_text, usable_threads

INTERESTING = ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16", "asimd", "bf16", "i8mm", "sve")
"""Flags of /proc/cpuinfo (x86 and Arm) that decide which kernels a CPU can run."""

_GENERATIONS = (
    ("AuthenticAMD", 23, range(0x00, 0x30), "Zen"),
    ("AuthenticAMD", 23, range(0x30, 0x100), "Zen 2"),
    ("AuthenticAMD", 25, range(0x00, 0x10), "Zen 3"),
    ("AuthenticAMD", 25, range(0x10, 0x20), "Zen 4"),
    ("AuthenticAMD", 25, range(0xA0, 0xB0), "Zen 4c"),
    ("AuthenticAMD", 26, range(0x00, 0x10), "Zen 5"),
    ("AuthenticAMD", 26, range(0x10, 0x20), "Zen 5c"),
    ("GenuineIntel", 6, (79,), "Broadwell"),
    ("GenuineIntel", 6, (85,), "Skylake to Cooper Lake"),
    ("GenuineIntel", 6, (106, 108), "Ice Lake"),
    ("GenuineIntel", 6, (143,), "Sapphire Rapids"),
    ("GenuineIntel", 6, (207,), "Emerald Rapids"),
    ("GenuineIntel", 6, (173, 174), "Granite Rapids"),
)
"""Vendor, family and models -> generation of a server processor. Hypervisors often hide the name of such a
processor."""


class Cpu(BaseModel):
    """The processors of one machine. Cache sizes are bytes of one cache, which several cores may share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    vendor: str
    architecture: str
    sockets: int | None
    cores: int
    """Physical cores of the machine."""
    threads: int
    """Logical CPUs of the machine."""
    usable_threads: int
    """Logical CPUs that this process may use: the lower of affinity and the control group's quota, which is rounded
    up."""
    smt: bool
    l1d_bytes: int | None
    l2_bytes: int | None
    l3_bytes: int | None
    numa_nodes: int | None
    governor: str | None
    turbo: bool | None
    isa: tuple[str, ...]
    generation: str = ""
    """Generation such as `Sapphire Rapids`, if the hypervisor hides the name of the processor; else empty."""

    @property
    def bfloat16_flags(self) -> list[str]:
        """Flags of instructions that multiply bfloat16. Empty if the CPU has none."""
        return [flag for flag in ("avx512_bf16", "amx_bf16", "bf16") if flag in self.isa]

    @property
    def name(self) -> str:
        return f"{self.model} ({self.generation})" if self.generation else self.model


def read_cpu(root: Path = Path("/")) -> Cpu:
    """Read the CPU's description from proc/ and sys/ under `root`."""
    info = _cpuinfo(root)
    system = root / "sys/devices/system/cpu"
    folders = sorted(path for path in system.glob("cpu[0-9]*") if (path / "topology").is_dir())
    packages = {read_text(cpu / "topology/physical_package_id") for cpu in folders}
    cores = {read_text(cpu / "topology/thread_siblings_list") or cpu.name for cpu in folders}
    threads = len(folders) or os.cpu_count() or 1
    flags = set((info.get("flags") or info.get("Features") or "").split())
    return Cpu(
        model=info.get("model name") or platform.processor() or platform.machine(),
        vendor=info.get("vendor_id") or info.get("CPU implementer") or "",
        architecture=platform.machine(),
        sockets=len(packages) or None,
        cores=len(cores) or threads,
        threads=threads,
        usable_threads=usable_threads(root),
        smt=0 < len(cores) < threads,
        l1d_bytes=_cache_bytes(folders, "1"),
        l2_bytes=_cache_bytes(folders, "2"),
        l3_bytes=_cache_bytes(folders, "3"),
        numa_nodes=len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or None,
        governor=read_text(system / "cpu0/cpufreq/scaling_governor"),
        turbo=_turbo(system),
        isa=tuple(flag for flag in INTERESTING if flag in flags),
        generation=_generation(info),
    )


def respect_quota(root: Path = Path("/")) -> None:
    """Limit the threads of OpenMP and PyTorch to the CPU quota, because both libraries ignore the quota.

    Call this function before torch is imported. Child processes inherit the limit. A value of `OMP_NUM_THREADS` that
    the user has set stays.
    """
    cpu = read_cpu(root)
    if cpu_quota(root) is not None and cpu.usable_threads < cpu.threads:
        os.environ.setdefault("OMP_NUM_THREADS", str(min(cpu.cores, cpu.usable_threads)))


BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""Variables with which OpenMP binds threads to CPUs. With such a variable, the import of torch binds the whole process
to the first CPU."""


def bind_no_threads() -> list[str]:
    """Remove the variables that bind threads, so that processes and ranks have all CPUs. Returns the names of the
    variables that were set. Call this function before torch is imported.
    """
    return [name for name in BINDING if os.environ.pop(name, None) is not None]


def _generation(info: Mapping[str, str]) -> str:
    """The generation of a processor whose name has no number, such as `AMD EPYC`; family and model if the generation is
    unknown."""
    name = re.sub(r"@.*", "", info.get("model name", ""))
    family, model = info.get("cpu family", ""), info.get("model", "")
    if any(map(str.isdigit, name)) or not (family.isdigit() and model.isdigit()):
        return ""
    for vendor, of_family, models, generation in _GENERATIONS:
        if vendor == info.get("vendor_id") and of_family == int(family) and int(model) in models:
            return generation
    return f"family {family}, model {model}"


def huge_pages(root: Path = Path("/")) -> str | None:
    """The active mode of transparent huge pages: always, madvise or never; None if unknown."""
    mode = re.search(r"\[(\w+)\]", read_text(root / "sys/kernel/mm/transparent_hugepage/enabled") or "")
    return mode.group(1) if mode else None


def asks_for_huge_pages() -> bool:
    """Whether the C library can ask for huge pages: glibc 2.35 or later."""
    name, version = platform.libc_ver()
    return name == "glibc" and tuple(int(part) for part in version.split(".")[:2]) >= (2, 35)


def _cpuinfo(root: Path) -> dict[str, str]:
    """The first processor's entries."""
    entries: dict[str, str] = {}
    for line in (read_text(root / "proc/cpuinfo") or "").split("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        entries.setdefault(key.strip(), value.strip())
    return entries


def _cache_bytes(cpus: Iterable[Path], level: str) -> int | None:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    for cpu in cpus:
        for index in sorted((cpu / "cache").glob("index*")):
            size = re.fullmatch(r"(\d+)([KMG]?)", read_text(index / "size") or "")
            if size and read_text(index / "level") == level and read_text(index / "type") in ("Data", "Unified"):
                return int(size.group(1)) * units.get(size.group(2), 1)
    return None


def _turbo(system: Path) -> bool | None:
    off = read_text(system / "intel_pstate/no_turbo")
    if off is not None:
        return off == "0"
    boost = read_text(system / "cpufreq/boost")
    return None if boost is None else boost == "1"
