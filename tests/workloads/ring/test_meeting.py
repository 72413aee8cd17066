"""Where ranks meet: addresses, interfaces, and strangers at the port of rank 0."""

from __future__ import annotations

import os
import re
import socket
from time import monotonic

import pytest

from chunkbench.workloads.ring.launch import GivenWorld, RankLostError, Ranks
from chunkbench.workloads.ring.rank import NoLeaderError, interface_to, is_loopback, open_store
from chunkbench.workloads.serving.servers.process import free_port


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_ranks_meet_at_each_address_of_the_loopback(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    if host == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6")
    led = open_store(host, 0, leads=True)
    led.set("go", "cpu")
    joined = open_store(host, led.port, leads=False, deadline=monotonic() + 20)
    assert joined.get("go") == b"cpu"
    assert is_loopback(host, led.port)
    assert interface_to(host, led.port) == "lo"


def test_a_stranger_at_the_port_of_rank_0_is_no_rank_0() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        began, port = monotonic(), stranger.getsockname()[1]
        with pytest.raises(NoLeaderError, match=f"MASTER_PORT={port} .*another program listens there"):
            open_store("127.0.0.1", port, leads=False, deadline=monotonic() + 2)
        assert monotonic() - began < 8


def test_nobody_at_the_port_of_rank_0_says_what_may_be_the_cause() -> None:
    with pytest.raises(NoLeaderError, match=r"Connection refused; if rank 0 has MASTER_ADDR=localhost"):
        open_store("127.0.0.1", free_port(), leads=False, deadline=monotonic() + 1)


def test_an_address_or_an_interface_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match=r"MASTER_ADDR=no\.such\.host\.invalid: "):
        open_store("no.such.host.invalid", 1, leads=True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"MASTER_ADDR=127.0.0.1, MASTER_PORT={port}: Address already in use"):
            open_store("127.0.0.1", port, leads=True)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    with pytest.raises(OSError, match=r"GLOO_SOCKET_IFNAME=ib0: this machine has no ib0, but .*lo"):
        interface_to("127.0.0.1", 1)


def test_the_cause_of_a_rank_reaches_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    world = GivenWorld(0, 1, "127.0.0.1", free_port())
    cause = "rank 0: GLOO_SOCKET_IFNAME=ib0: this machine has no ib0"
    with pytest.raises(RankLostError, match=f"{re.escape(cause)}.*MASTER_ADDR=127.0.0.1 is the loopback"):
        Ranks(1, 1, "cpu", given=world)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "ib0"
