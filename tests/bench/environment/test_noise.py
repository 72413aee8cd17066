"""The noise meter, with invented clocks and with a real process that keeps a CPU busy."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace

import psutil
import pytest

from chunkbench.bench.environment import NoiseMeter, heavy_processes, noise

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
