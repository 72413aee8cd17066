"""What an NVIDIA GPU is doing, as NVML (nvidia-ml-py) tells it. Settings are read, never changed."""

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
"""Bits of NVML's clock event reasons, for people. An idle GPU (bit 1) is not being slowed down."""


class Clock(NamedTuple):
    """The clock of the multiprocessors just now."""

    sm_mhz: int | None
    reasons: int
    """Bits of why it is not higher, as NVML gives them."""


class Condition(NamedTuple):
    """What takes longer to read than a clock; None where the driver does not say."""

    memory_mhz: int | None
    power_w: float | None
    temperature_c: int | None
    other_processes: int | None
    other_bytes: int | None


class Nvml:
    """One device, seen through the module `pynvml`."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle

    def clock(self) -> Clock:
        """Takes microseconds, and no part of any timed call."""
        nvml, handle = self._library, self._handle
        mhz = self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        reasons = self._ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        return Clock(mhz, reasons or 0)

    def condition(self) -> Condition:
        """Everything else that is recorded of a round."""
        nvml, handle = self._library, self._handle
        milliwatts = self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        others, held = self._others()
        return Condition(
            self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            None if milliwatts is None else milliwatts / 1000,
            self._ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            others,
            held,
        )

    def driver(self) -> str | None:
        """Version of the driver."""
        version = self._ask(self._library.nvmlSystemGetDriverVersion)
        return version.decode() if isinstance(version, bytes) else version

    def _others(self) -> tuple[int | None, int | None]:
        """Processes that compute on the device besides this one and its parent, and the bytes that they hold."""
        found = self._ask(lambda: self._library.nvmlDeviceGetComputeRunningProcesses(self._handle))
        if found is None:
            return None, None
        others = [process for process in found if process.pid not in (os.getpid(), os.getppid())]
        if others and len(others) == len(found):
            # In a container pids are those of the host, and this process goes by a number that it does not know.
            return len(others) - 1, None
        held = [process.usedGpuMemory for process in others]
        return len(others), None if None in held else sum(held)

    def _ask(self, question: Callable[[], Any]) -> Any:
        """The answer, or None where the device, the driver or its permissions have none."""
        with contextlib.suppress(self._library.NVMLError):
            return question()
        return None


def open_nvml(uuid: str | None = None) -> Nvml | None:
    """The device with this UUID, or the first; None where nvidia-ml-py is not installed or finds no driver."""
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
    """What the bits stand for; those that are not known by their number."""
    words = [word for bit, word in THROTTLE_WORDS.items() if reasons & bit]
    unknown = reasons & ~sum(THROTTLE_WORDS) & ~1
    return (*words, f"reason {unknown:#x}") if unknown else tuple(words)
