"""Reads the state of an NVIDIA GPU through NVML (nvidia-ml-py). This module never changes a setting."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

THROTTLE_WORDS = {
    0x0000000000000002: "application clocks",
    0x0000000000000004: "power cap",
    0x0000000000000008: "hardware slowdown",
    0x0000000000000010: "sync boost",
    0x0000000000000020: "heat (software)",
    0x0000000000000040: "heat (hardware)",
    0x0000000000000080: "power brake",
    0x0000000000000100: "display clocks",
}
"""Words for the bits of NVML's clock event reasons. Bit 1 (the GPU is idle) is left out, because it is not a
slowdown."""


class Clock(NamedTuple):
    """The current clock of the GPU's multiprocessors, and the reasons for this clock."""

    sm_mhz: int | None
    reasons: int
    """NVML's bits that say why the clock is not higher."""


class Condition(NamedTuple):
    """State of the GPU without its clock. A value is None if the driver does not report it."""

    memory_mhz: int | None
    power_w: float | None
    temperature_c: int | None
    other_processes: int | None
    other_bytes: int | None


class Nvml:
    """One device, read through the module `pynvml`."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle

    def clock(self) -> Clock:
        """The current clock. This call takes microseconds, and is never made inside a timed call."""
        nvml, handle = self._library, self._handle
        mhz = self._query(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        reasons = self._query(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        return Clock(mhz, reasons or 0)

    def condition(self) -> Condition:
        nvml, handle = self._library, self._handle
        milliwatts = self._query(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        others, held = self._others()
        return Condition(
            self._query(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            None if milliwatts is None else milliwatts / 1000,
            self._query(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            others,
            held,
        )

    def driver(self) -> str | None:
        version = self._query(self._library.nvmlSystemGetDriverVersion)
        return version.decode() if isinstance(version, bytes) else version

    def _others(self) -> tuple[int | None, int | None]:
        """Number of other processes that compute on the device, and the bytes they hold. This process and its parent do
        not count."""
        processes = self._query(lambda: self._library.nvmlDeviceGetComputeRunningProcesses(self._handle))
        if processes is None:
            return None, None
        others = [process for process in processes if process.pid not in (os.getpid(), os.getppid())]
        if others and len(others) == len(processes):
            # In a container NVML reports the host's process ids, and this process does not know its id on the host.
            return len(others) - 1, None
        held = [process.usedGpuMemory for process in others]
        return len(others), None if None in held else sum(held)

    def _query(self, read: Callable[[], Any]) -> Any:
        """The value, or None if the device or the driver does not report the value or forbids to read it."""
        with contextlib.suppress(self._library.NVMLError):
            return read()
        return None


def open_nvml(uuid: str | None = None) -> Nvml | None:
    """The device with this UUID, or the first one; None if nvidia-ml-py is not installed or finds no driver."""
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        library.nvmlInit()
        handle = library.nvmlDeviceGetHandleByUUID(uuid) if uuid else library.nvmlDeviceGetHandleByIndex(0)
    except library.NVMLError:
        return None
    return Nvml(library, handle)


def throttle_words(reasons: int) -> tuple[str, ...]:
    """Names of the reasons in NVML's bits (`THROTTLE_WORDS`). Unknown bits together become one hexadecimal number."""
    words = [word for bit, word in THROTTLE_WORDS.items() if reasons & bit]
    unknown = reasons & ~sum(THROTTLE_WORDS) & ~1
    return (*words, f"reason {unknown:#x}") if unknown else tuple(words)
