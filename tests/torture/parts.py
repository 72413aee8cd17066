"""All parts, in the order in which `make torture` does them."""

from __future__ import annotations

from tests.torture import (
    advisories,
    allocations,
    disk,
    forests,
    fuzz_clients,
    fuzz_experiments,
    fuzz_files,
    fuzz_http,
    fuzz_native,
    hosts,
    judged,
    kill,
    power_cut,
    processors,
    ray_hosts,
    soak,
    supply,
    surroundings,
    time,
    wheelhouse,
)
from tests.torture.trials import Part

WITH_SERVER: tuple[Part, ...] = (fuzz_http.PART, soak.PART)
"""Their short versions are in tests/server/test_server.py, where a server runs already."""
LONG: tuple[Part, ...] = (advisories.PART, wheelhouse.PART, ray_hosts.PART)
"""`make test` leaves them out: parts of supply need a network at first, a trial of Ray takes a minute."""
PARTS: tuple[Part, ...] = (
    kill.PART,
    power_cut.PART,
    disk.PART,
    allocations.PART,
    time.PART,
    fuzz_files.PART,
    fuzz_experiments.PART,
    fuzz_http.PART,
    fuzz_clients.PART,
    fuzz_native.PART,
    forests.PART,
    judged.PART,
    surroundings.PART,
    soak.PART,
    supply.PART,
    advisories.PART,
    wheelhouse.PART,
    hosts.PART,
    ray_hosts.PART,
    processors.PART,
)
