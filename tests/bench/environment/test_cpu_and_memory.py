"""Processors, memory and GPUs, as the system describes them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from chunkbench.bench.environment.cgroups import cpu_quota
from chunkbench.bench.environment.cpu import huge_pages, read_cpu
from chunkbench.bench.environment.gpu import Clock, Condition, Nvml, open_nvml
from chunkbench.bench.environment.memory import available_memory, memory_limit, oom_kills


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def printed(program: str, environment: dict[str, str], *words: str) -> str:
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """Two sockets of two cores with two threads each."""
    write(
        tmp_path,
        {
            "proc/cpuinfo": "vendor_id\t: GenuineIntel\nmodel name\t: Xeon X\n"
            "flags\t\t: fpu avx2 fma avx512f avx512_bf16\n\n"
            "model name\t: second\nflags\t: none",
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave",
            "sys/devices/system/cpu/intel_pstate/no_turbo": "1",
            "sys/devices/system/node/node0/meminfo": "",
            "sys/devices/system/node/node1/meminfo": "",
            "sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]",
        },
    )
    for cpu in range(8):
        topology = f"sys/devices/system/cpu/cpu{cpu}/topology"
        write(
            tmp_path,
            {
                f"{topology}/physical_package_id": str(cpu % 4 // 2),
                f"{topology}/thread_siblings_list": f"{cpu % 4},{cpu % 4 + 4}",
            },
        )
    caches = [("1", "Instruction", "32K"), ("1", "Data", "48K"), ("2", "Unified", "2048K"), ("3", "Unified", "60M")]
    for index, (level, kind, size) in enumerate(caches):
        cache = f"sys/devices/system/cpu/cpu0/cache/index{index}"
        write(tmp_path, {f"{cache}/level": level, f"{cache}/type": kind, f"{cache}/size": size})
    return tmp_path


def test_topology_caches_and_settings(server: Path) -> None:
    cpu = read_cpu(server)
    assert (cpu.model, cpu.vendor) == ("Xeon X", "GenuineIntel")
    assert (cpu.sockets, cpu.cores, cpu.threads, cpu.smt, cpu.numa_nodes) == (2, 4, 8, True, 2)
    assert (cpu.l1d_bytes, cpu.l2_bytes, cpu.l3_bytes) == (48 * 1024, 2 * 1024**2, 60 * 1024**2)
    assert (cpu.governor, cpu.turbo) == ("powersave", False)
    assert cpu.isa == ("avx2", "fma", "avx512f", "avx512_bf16")
    assert huge_pages(server) == "never"


def test_without_proc_and_sys_most_fields_are_none(tmp_path: Path) -> None:
    cpu = read_cpu(tmp_path)
    assert cpu.threads >= cpu.cores >= 1
    assert (cpu.governor, cpu.turbo, cpu.l3_bytes, cpu.numa_nodes, cpu.smt) == (None, None, None, None, False)
    assert huge_pages(tmp_path) is None


CPU = "sys/fs/cgroup"
QUOTAS = {
    "own": ({f"{CPU}/cpu.max": "150000 100000"}, 1.5),
    "none": ({"proc/self/cgroup": "0::/a", f"{CPU}/a/cpu.max": "max 100000"}, None),
    "below": (
        {"proc/self/cgroup": "0::/a", f"{CPU}/cpu.max": "400000 100000", f"{CPU}/a/cpu.max": "50000 100000"},
        0.5,
    ),
    "above": ({"proc/self/cgroup": "0::/a/b", f"{CPU}/a/cpu.max": "100000 100000", f"{CPU}/a/b/cpu.max": "max 1"}, 1),
    "v1": ({"proc/self/cgroup": "3:cpu,cpuacct:/a\n0::/", f"{CPU}/cpu/a/cpu.cfs_quota_us": "50000"}, 0.5),
    "v1, two names": (
        {"proc/self/cgroup": "3:cpu,cpuacct:/a\n0::/", f"{CPU}/cpu,cpuacct/a/cpu.cfs_quota_us": "100000"},
        1,
    ),
    "v1, none": ({"proc/self/cgroup": "3:cpu:/a", f"{CPU}/cpu/a/cpu.cfs_quota_us": "-1"}, None),
    "container": ({"proc/self/cgroup": "3:cpu:/docker/abc", f"{CPU}/cpu/cpu.cfs_quota_us": "100000"}, 1),
    "v1, mounted elsewhere": (
        {
            "proc/self/cgroup": "3:cpu:/docker/abc/in ner",
            "proc/self/mountinfo": "32 31 0:29 /docker/abc /my\\040groups ro shared:1 - cgroup cgroup ro,cpuacct,cpu",
            "my groups/in ner/cpu.cfs_quota_us": "100000",
        },
        1,
    ),
    "v2, mounted elsewhere": (
        {
            "proc/self/cgroup": "0::/a:b",
            "proc/self/mountinfo": "41 31 0:38 / /unified rw - cgroup2 cgroup2 rw,nsdelegate",
            "unified/a:b/cpu.max": "100000 100000",
        },
        1,
    ),
}


@pytest.mark.parametrize("name", QUOTAS)
def test_the_strictest_quota_above_this_process_counts(name: str, tmp_path: Path) -> None:
    files, cpus = QUOTAS[name]
    periods = {file.replace("quota", "period"): "100000" for file in files if file.endswith("quota_us")}
    write(tmp_path, files | periods)
    assert cpu_quota(tmp_path) == cpus
    if cpus is not None and cpus <= 1:
        assert read_cpu(tmp_path).usable_threads == 1


@pytest.mark.parametrize(
    ("quota", "given", "threads"),
    [("50000 100000", {}, "1"), ("max 1", {}, ""), ("1 1", {"OMP_NUM_THREADS": "3"}, "3")],
)
def test_openmp_takes_no_more_threads_than_the_quota_allows(
    server: Path, quota: str, given: dict[str, str], threads: str
) -> None:
    write(server, {"proc/self/cgroup": "0::/", f"{CPU}/cpu.max": quota})
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from chunkbench.bench.environment import respect_quota\n"
        "respect_quota(Path(sys.argv[1]))\n"
        "print(os.environ.get('OMP_NUM_THREADS', ''))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | given
    assert printed(program, environment, str(server)) == threads


MEMORY = {
    "version 2, without page cache": (
        {
            "proc/self/cgroup": "0::/outer/inner",
            "sys/fs/cgroup/outer/memory.max": "5000",
            "sys/fs/cgroup/outer/memory.current": "4000",
            "sys/fs/cgroup/outer/memory.stat": "anon 900\ninactive_file 2000\nactive_file 500\nslab_reclaimable 100",
            "sys/fs/cgroup/outer/inner/memory.max": "max",
            "sys/fs/cgroup/outer/inner/memory.current": "3000",
        },
        (5000, 5000 - (4000 - 2600)),
    ),
    "version 1, a container whose path is not mounted": (
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "8000",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "7000",
            "sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 1000\ntotal_active_file 500",
        },
        (8000, 8000 - (7000 - 1500)),
    ),
    "above its limit": (
        {"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "100", "sys/fs/cgroup/memory.current": "120"},
        (100, 0),
    ),
    "no limit": (
        {
            "proc/self/cgroup": "4:memory:/\n0::/",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(2**63 - 4096),
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "7000",
        },
        (None, pytest.approx(psutil.virtual_memory().available, rel=0.3)),
    ),
}


@pytest.mark.parametrize("name", MEMORY)
def test_memory_is_limited_by_the_strictest_group(name: str, tmp_path: Path) -> None:
    files, expected = MEMORY[name]
    write(tmp_path, files)
    assert (memory_limit(tmp_path), available_memory(tmp_path)) == expected


def test_the_kernels_kills_for_memory_are_counted(tmp_path: Path) -> None:
    assert oom_kills(tmp_path) == 0
    write(tmp_path, {"proc/vmstat": "nr_free_pages 17\noom_kill 3\noom_kill_x 5"})
    assert oom_kills(tmp_path) == 3


@pytest.mark.parametrize(
    ("name", "vendor", "family", "model", "shown"),
    [
        ("AMD EPYC", "AuthenticAMD", 26, 2, "AMD EPYC (Zen 5)"),
        ("AMD EPYC", "AuthenticAMD", 25, 17, "AMD EPYC (Zen 4)"),
        ("Intel(R) Xeon(R) Processor", "GenuineIntel", 6, 207, "Intel(R) Xeon(R) Processor (Emerald Rapids)"),
        ("Xeon @ 2.30GHz", "GenuineIntel", 6, 999, "Xeon @ 2.30GHz (family 6, model 999)"),
        ("AMD EPYC 9654 96-Core Processor", "AuthenticAMD", 25, 17, "AMD EPYC 9654 96-Core Processor"),
    ],
)
def test_a_processor_without_a_number_gets_its_generation(
    tmp_path: Path, name: str, vendor: str, family: int, model: int, shown: str
) -> None:
    lines = [f"vendor_id : {vendor}", f"cpu family : {family}", f"model : {model}", f"model name : {name}"]
    write(tmp_path, {"proc/cpuinfo": "\n".join(lines)})
    assert read_cpu(tmp_path).name == shown


def test_threads_are_bound_by_nobody() -> None:
    """The import of torch would bind this process, and all workers with it, to the first CPU."""
    program = (
        "import os\n"
        "before = os.sched_getaffinity(0)\n"
        "from chunkbench.bench.environment import bind_no_threads\n"
        "print(bind_no_threads())\n"
        "import torch\n"
        "torch.ones(1 << 20).sum()\n"
        "assert os.sched_getaffinity(0) == before\n"
    )
    environment = os.environ | {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}
    assert printed(program, environment) == "['OMP_PROC_BIND', 'OMP_PLACES']"


class NotSupported(Exception):
    pass


def library(processes: list[tuple[int, int | None]] | None = None, **answers: Any) -> Any:
    """A `pynvml` that gives these processes and `answers`; the temperature is not supported."""

    def refuse(*_: Any) -> Any:
        raise NotSupported

    held = None if processes is None else [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in processes]
    functions: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetClockInfo": lambda handle, which: {1: 1980, 2: 2619}[which],
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x4 | 0x1,
        "nvmlDeviceGetPowerUsage": lambda handle: 351_250,
        "nvmlDeviceGetTemperature": refuse,
        "nvmlDeviceGetComputeRunningProcesses": (lambda handle: held) if held is not None else refuse,
        "nvmlSystemGetDriverVersion": lambda: b"575.57.08",
    }
    constants = {"NVMLError": NotSupported, "NVML_CLOCK_SM": 1, "NVML_CLOCK_MEM": 2, "NVML_TEMPERATURE_GPU": 0}
    return SimpleNamespace(**constants, **(functions | answers))


def test_clock_condition_and_driver_are_read() -> None:
    nvml = Nvml(library([(os.getpid(), 10), (10**9, 500), (10**9 + 1, 700)]), 0)
    assert nvml.clock() == Clock(1980, 5)
    assert nvml.condition() == Condition(2619, 351.25, None, 2, 1200)
    assert nvml.driver() == "575.57.08"


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        (None, (None, None)),
        ([], (0, 0)),
        ([(os.getpid(), None)], (0, 0)),
        ([(os.getpid(), 5), (10**9, None)], (1, None)),
        # In a container NVML lists the host's process ids: one is ours, and its memory is unknown.
        ([(10**9, 5), (10**9 + 1, 7)], (1, None)),
    ],
)
def test_other_processes_on_the_device_are_counted(
    processes: list[tuple[int, int | None]] | None, expected: tuple[int | None, int | None]
) -> None:
    assert Nvml(library(processes), 0).condition()[-2:] == expected


def test_without_the_library_or_the_driver_there_is_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise NotSupported

    for pynvml in (None, library(nvmlInit=no_driver)):
        monkeypatch.setitem(sys.modules, "pynvml", pynvml)
        assert open_nvml() is None
