"""Reading NVML, with a stand-in for its library."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from chunkbench.bench.environment.gpu import Clock, Condition, open_nvml, throttle_words


class NotSupported(Exception):
    pass


def library(processes: list[tuple[int, int | None]] | None = None, **answers: Any) -> SimpleNamespace:
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


def test_clock_condition_and_driver_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library([(os.getpid(), 10), (10**9, 500), (10**9 + 1, 700)]))
    nvml = open_nvml("GPU-1")
    assert nvml is not None
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
    processes: list[tuple[int, int | None]] | None, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library(processes))
    nvml = open_nvml()
    assert nvml is not None
    assert nvml.condition()[-2:] == expected


def test_without_the_library_or_the_driver_there_is_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_nvml() is None

    def no_driver() -> None:
        raise NotSupported

    monkeypatch.setitem(sys.modules, "pynvml", library(nvmlInit=no_driver))
    assert open_nvml() is None


def test_throttle_reasons_are_words() -> None:
    assert throttle_words(0) == throttle_words(1) == ()
    assert throttle_words(0x44) == ("power cap", "heat (hardware)")
    assert throttle_words(0x1004) == ("power cap", "reason 0x1000")
