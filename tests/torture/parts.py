"""All parts, in the order in which `make torture` does them. docs/reliability.md says what each does."""

from __future__ import annotations

from functools import partial

from tests.torture import (
    decoding,
    forests,
    fuzz_clients,
    fuzz_files,
    fuzz_http,
    fuzz_native,
    hosts,
    judged,
    processors,
    runs,
    soak,
    supply,
    surroundings,
)
from tests.torture.trials import Part

PARTS: tuple[Part, ...] = (
    Part("kill", runs.killed, partial(runs.killed, most=1, only="replay", victims=("driver",)), minutes=10),
    Part("power cut", runs.cut_off, minutes=4),
    Part("disk", runs.disk_that_fails),
    Part("memory", decoding.short_memory),
    Part("time", decoding.odd_times, minutes=8),
    Part("fuzz files", fuzz_files.damaged_files),
    Part("fuzz experiments", fuzz_files.odd_experiments),
    Part("fuzz HTTP", fuzz_http.attacked, minutes=8),
    Part("fuzz clients", fuzz_clients.lied_to),
    Part("fuzz native", partial(fuzz_native.wrong_calls, True), partial(fuzz_native.wrong_calls, False), minutes=19),
    Part("forests", forests.random_forests, minutes=13),
    Part("constrained answers", judged.constrained_answers),
    Part("environment", surroundings.odd_environments),
    Part("soak", soak.soaked, minutes=18),
    Part("supply", supply.installed, minutes=0),
    Part("supply advisories", supply.advisories, minutes=0),
    Part("supply wheelhouse", supply.wheelhouse, minutes=0),
    Part("hosts", partial(hosts.ring_on_hosts, hosts.run_ring), partial(hosts.ring_on_hosts, hosts.send), minutes=8),
    Part("Ray hosts", hosts.ray_on_hosts, minutes=8),
    Part("processors", partial(processors.on_arm, True), partial(processors.on_arm, False), minutes=5),
)
WITH_SERVER = ("fuzz HTTP", "soak")
"""Their short versions are in tests/server/test_server.py, where a server runs already."""
LONG = ("supply advisories", "supply wheelhouse", "Ray hosts")
"""`make test` leaves them out: parts of supply need a network at first, a trial of Ray takes a minute."""
