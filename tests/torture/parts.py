"""All parts, in the order in which `make torture` does them."""

from __future__ import annotations

from tests.torture import (
    disk,
    forests,
    fuzz_clients,
    fuzz_experiments,
    fuzz_files,
    fuzz_http,
    fuzz_native,
    hosts,
    kill,
    memory,
    power_cut,
    processors,
    soak,
    supply,
    time,
)
from tests.torture.trials import Part

WITH_SERVER: tuple[Part, ...] = (fuzz_http.PART, soak.PART)
"""Their short versions are in tests/serving/server/test_server.py, where a server runs already."""
ONLINE: tuple[Part, ...] = (supply.ADVISORIES, supply.WHEELHOUSE)
"""Need a network at first, so `make test` leaves them out."""
PARTS: tuple[Part, ...] = (
    kill.PART,
    power_cut.PART,
    disk.PART,
    memory.PART,
    time.PART,
    fuzz_files.PART,
    fuzz_experiments.PART,
    fuzz_http.PART,
    fuzz_clients.PART,
    fuzz_native.PART,
    forests.PART,
    soak.PART,
    supply.PART,
    *ONLINE,
    hosts.PART,
    processors.PART,
)
