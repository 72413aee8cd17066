"""Three hosts in network namespaces, behind a switch that does harm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.torture.trials import Unavailable
from tests.workloads.ring.test_namespaces import UNSHARE, Network, Refused, done

HOSTS = 3
SWITCH = Path(__file__).with_name("switch.py")
PROGRAMS = ("unshare", "nsenter", "ip", "hostname")


@dataclass
class Switched(Network):
    """Hosts 10.77.0.1 to 10.77.0.3 behind a switch (switch.py)."""

    switch: subprocess.Popen[str] | None = None

    def build(self) -> None:
        self.hold(*UNSHARE)
        for host in range(1, HOSTS + 1):
            self.add_host(host)
            done(*self.within(host), sys.executable, str(SWITCH), "--plain", "wire")
        words = [*self.within(0), sys.executable, str(SWITCH), *(f"to{host}" for host in range(1, HOSTS + 1))]
        self.switch = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.holders.append(self.switch)
        self._heard("here")

    def does(self, **harm: object) -> None:
        """What happens to packets from now on."""
        assert self.switch is not None
        assert self.switch.stdin is not None
        print(json.dumps({"loss": 0.0, "delay": 0.0, "cut": [], **harm}), file=self.switch.stdin, flush=True)
        self._heard("done")

    def processes(self, *hosts: int) -> list[psutil.Process]:
        """What runs on these hosts (none named: on all), apart from what holds their namespaces."""
        held = [self.holders[host].pid for host in hosts or range(1, HOSTS + 1)]
        places = {os.readlink(f"/proc/{pid}/ns/net") for pid in held}
        found = []
        for pid in psutil.pids():
            with suppress(OSError, psutil.Error):
                if os.readlink(f"/proc/{pid}/ns/net") in places and pid not in held:
                    found.append(psutil.Process(pid))
        return found

    def _heard(self, word: str) -> None:
        assert self.switch is not None
        assert self.switch.stdout is not None
        if self.switch.stdout.readline().strip() != word:
            raise Refused("this system refuses sockets for frames")


@contextmanager
def switched() -> Iterator[Switched]:
    """The hosts. Raises Unavailable."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        raise Unavailable(
            f"there is no {' and no '.join(missing)}; Debian has them in util-linux, iproute2 and hostname"
        )
    network = Switched()
    try:
        try:
            network.build()
        except Refused as refused:
            raise Unavailable(f"this system refuses namespaces for networks: {refused}") from None
        yield network
    finally:
        network.close()
