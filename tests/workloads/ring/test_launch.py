"""Real ranks on this machine: results of every scheme, what they send, slow links, and ranks that are lost."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator, Sequence
from threading import Timer
from typing import Any

import psutil
import pytest

from chunkbench.bench.experiment.sessions import TOLERANCE
from chunkbench.workloads.ring.launch import LOOPBACK, RankLostError, Ranks, world_from_environment
from chunkbench.workloads.ring.measure import task_of
from chunkbench.workloads.ring.methods import CHOICES
from chunkbench.workloads.ring.placement import Scheme
from chunkbench.workloads.ring.rank import Answer
from chunkbench.workloads.ring.result import RingPoint
from chunkbench.workloads.ring.task import Task

LIMIT_S = 60
OURS = ("ring", "striped", "zigzag", "all_gather", "tree_decode")
RING = Scheme("contiguous", "ring", "native")
FOREVER = 1_000_000
"""Passes that take minutes together, and less than a millisecond each."""
UNEVEN = Task(2, 2, 32, "float32", "prefill", 5)
"""Of five striped tokens rank 1 has one less than rank 0; it cannot fill a block as large as that of rank 0."""

# 148 tokens of a rank fill neither chunks nor sixteen tokens; 66 end with two tokens of a second chunk.
PREFILLS: dict[str, dict[str, Any]] = {
    "causal": {"n_p": 296},
    "full": {"n_p": 296, "mask": "full"},
    "grouped": {"n_p": 296, "kv_heads": 2},
    "short": {"n_p": 132},
    "bfloat16": {"n_p": 256, "kv_heads": 2, "dtype": "bfloat16"},
}
DECODES: dict[str, dict[str, Any]] = {
    "all shared": {"n_p": 296, "batch_size": 5},
    "three quarters shared": {"n_p": 392, "n_s": 294, "batch_size": 5, "kv_heads": 2},
    "one sequence": {"n_p": 296, "n_s": 200, "batch_size": 1},
    "bfloat16 decode": {"n_p": 296, "n_s": 200, "batch_size": 3, "dtype": "bfloat16"},
}


def point(ranks: int = 2, **axes: Any) -> RingPoint:
    """A point with four heads; n_p and n_s are for two ranks, and grow with them."""
    axes |= {name: axes[name] * ranks // 2 for name in ("n_p", "n_s") if name in axes}
    given = {"device": "cpu", "dtype": "float32", "heads": 4, "head_dim": 32, "ranks": ranks, **axes}
    return RingPoint.model_validate(RingPoint.completed(given))


def points(ranks: int) -> dict[str, RingPoint]:
    """Small points of both phases."""
    prefills = {name: point(ranks, **axes) for name, axes in PREFILLS.items()}
    return prefills | {name: point(ranks, phase="decode", **axes) for name, axes in DECODES.items()}


SMALL = points(2)
# Ranks keep the random numbers of one dtype at a time, so points come before schemes.
SUPPORTED = [(scheme, name) for name in SMALL for scheme in CHOICES if not CHOICES[scheme].supports(SMALL[name])]


def chosen() -> list[Any]:
    """Every scheme, and every point with our schemes; their product is among the slow tests."""
    seen: set[str] = set()
    params = []
    for scheme, name in SUPPORTED:
        keep = scheme in OURS or scheme not in seen
        seen.add(scheme)
        params.append(pytest.param(scheme, name, marks=() if keep else pytest.mark.slow))
    return params


class Kept:
    """Ranks that several tests share, since they take a second to start; new ones after a test that lost them."""

    def __init__(self) -> None:
        self._all: dict[int, Ranks] = {}

    def of(self, count: int) -> Ranks:
        if count not in self._all or not self._all[count]._children:
            self._all[count] = Ranks(count, 1, "cpu")
        return self._all[count]

    def close(self) -> None:
        for ranks in self._all.values():
            ranks.close()


@pytest.fixture(scope="module")
def kept() -> Iterator[Kept]:
    all_ranks = Kept()
    yield all_ranks
    all_ranks.close()


@pytest.fixture
def ranks(kept: Kept) -> Ranks:
    return kept.of(2)


def checked(ranks: Ranks, name: str, at: RingPoint, repeats: int = 1) -> list[Answer]:
    """Answers of passes; rows of the last one were compared with float64."""
    method = CHOICES[name]
    if not (available := method.availability("cpu")).ok:
        pytest.skip(available.reason)
    answers = ranks.run(method.scheme, task_of(at), None, 0, LIMIT_S, check=True, repeats=repeats)
    for rank, answer in enumerate(answers):
        assert answer.error is not None
        assert answer.error <= TOLERANCE[at.dtype], f"rank {rank}"  # also wrong for NaN
    # Rows of one process are on the first rank alone, and every rank that has rows makes some error.
    rows = [answer.error != 0 for answer in answers]
    assert rows == [rank < (method.scheme.ranks or at.ranks) for rank in range(at.ranks)]
    return answers


@pytest.mark.parametrize(("scheme", "name"), chosen())
def test_every_scheme_has_the_attention_of_float64(ranks: Ranks, scheme: str, name: str) -> None:
    checked(ranks, scheme, SMALL[name])


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3, 4])
def test_blocks_travel_around_any_number_of_ranks(kept: Kept, count: int) -> None:
    """Twice: what a pass overwrites has to be there again for the next one."""
    for at in points(count).values():
        for scheme, method in CHOICES.items():
            if not method.supports(at) and method.availability("cpu").ok:
                checked(kept.of(count), scheme, at, repeats=2)


BLOCK = 2 * 128 * 4 * 32 * 4
"""K and V of 128 tokens, four heads of 32 numbers of four bytes."""
OUTPUTS = 3 * 4 * 32 * 4
"""Of 5 rows rank 0 has 3, and pads of as many on rank 1."""


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        (
            {"n_p": 256},
            {
                **dict.fromkeys(("ring", "striped", "zigzag", "all_gather", "ring_flash", "zigzag_flash"), BLOCK),
                **dict.fromkeys(("one_process", "no_exchange"), 0),
            },
        ),
        ({"n_p": 256, "kv_heads": 2, "dtype": "bfloat16"}, {"ring": BLOCK // 4}),
        (
            {"phase": "decode", "n_p": 300, "n_s": 256, "batch_size": 5},
            {
                **dict.fromkeys(("ring", "all_gather"), BLOCK + OUTPUTS),
                **{"no_exchange": OUTPUTS, "one_process": 0},
                # An all-reduce around a ring of two sends all of it once: outputs, peaks and sums in float32.
                "tree_decode": 5 * 4 * (32 + 2) * 4,
            },
        ),
    ],
    ids=["prefill", "smaller numbers", "decode"],
)
def test_ranks_send_blocks_and_outputs_or_partial_results(
    ranks: Ranks, axes: dict[str, Any], expected: dict[str, int]
) -> None:
    """Each block goes once to the one other rank."""
    for name, count in expected.items():
        answers = ranks.run(CHOICES[name].scheme, task_of(point(**axes)), None, 0, LIMIT_S)
        assert [answer.sent_bytes for answer in answers] == [count, count], name


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("ring", {"n_p": 256}),
        ("all_gather", {"n_p": 256}),
        ("tree_decode", {"phase": "decode", "n_p": 256, "batch_size": 64}),
    ],
)
def test_a_slow_link_takes_the_time_of_its_bytes(ranks: Ranks, name: str, axes: dict[str, Any]) -> None:
    """Or longer, where the transfers themselves take time."""
    task, scheme = task_of(point(**axes)), CHOICES[name].scheme
    (count,) = {answer.sent_bytes for answer in ranks.run(scheme, task, None, 0, LIMIT_S)}
    link = 40 * count
    for answer in ranks.run(scheme, task, link, 0, LIMIT_S, check=True, repeats=2):
        assert answer.sent_bytes == count
        assert answer.seconds >= count / link
        assert answer.transfer_s >= count / link
        assert answer.wait_s > 0
        assert answer.error is not None
        assert answer.error <= TOLERANCE["float32"]


def test_an_answer_says_what_a_rank_did(ranks: Ranks) -> None:
    """Two ranks compute twice: their own block, and the one that arrives meanwhile."""
    six_blocks = 6 * 2048 * 4 * 32 * 4
    for answer in ranks.run(RING, task_of(point(n_p=4096)), None, 0, LIMIT_S, repeats=2):
        assert answer.error is None
        assert [event[0] for event in answer.events].count("compute") == 2
        assert [event[0] for event in answer.events].count("transfer") == 1
        assert all(0 <= start <= end for _, start, end in answer.events)
        assert 0 < answer.compute_s <= answer.seconds
        assert answer.host == socket.gethostname()
        # Memory that the process has already may serve for a part of it.
        assert answer.peak_bytes is None or six_blocks / 2 <= answer.peak_bytes < 10 * six_blocks


def test_probed_rates(ranks: Ranks) -> None:
    link = 1 << 30
    for rates in ranks.probe(task_of(point(n_p=512)), "native", link, LIMIT_S):
        assert 1e6 < rates["flops_per_s"] < 1e14
        assert 0 < rates["bytes_per_s"] <= link


GIVEN = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, ""),
        ({"RANK": None, "WORLD_SIZE": None, "MASTER_ADDR": None, "MASTER_PORT": None}, "none"),
        ({"WORLD_SIZE": None, "MASTER_ADDR": None, "MASTER_PORT": None}, "none"),
        ({"MASTER_ADDR": None}, "MASTER_ADDR must be set too$"),
        ({"MASTER_ADDR": "", "MASTER_PORT": None}, "MASTER_ADDR and MASTER_PORT must be set too$"),
        ({"RANK": "one"}, "RANK=one"),
        ({"MASTER_PORT": "one"}, "MASTER_PORT=one"),
    ],
    ids=str,
)
def test_the_variables_of_a_launcher(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, str | None], told: str
) -> None:
    for name in GIVEN:
        monkeypatch.delenv(name, raising=False)
    for name, value in (GIVEN | changes).items():
        if value is not None:
            monkeypatch.setenv(name, value)
    if told == "none":
        assert world_from_environment() is None
    elif told:
        with pytest.raises(ValueError, match=told):
            world_from_environment()
    else:
        world = world_from_environment()
        assert world is not None
        assert (world.rank, world.size, world.host, world.port) == (1, 4, "10.0.0.1", 29500)


def pids(ranks: Ranks) -> list[int]:
    return [child.pid for child in ranks._children.values()]


def listening(pid: int) -> dict[int, str]:
    """The ports at which a process listens, and their addresses."""
    sockets = psutil.Process(pid).net_connections("inet")
    return {found.laddr.port: found.laddr.ip for found in sockets if found.status == "LISTEN"}


def check_gone(processes: Sequence[int], port: int) -> None:
    """No process is left, not even one that nobody waited for, and nothing listens at the store's port."""
    assert not [pid for pid in processes if psutil.pid_exists(pid)]
    with socket.socket() as caller:
        assert caller.connect_ex((LOOPBACK, port)) != 0


def test_two_at_once_are_on_this_machine_alone_and_a_killed_rank_ends_only_its_own(ranks: Ranks) -> None:
    other = Ranks(2, 1, "cpu")
    try:
        processes, port = pids(other), other._store.port
        assert port != ranks._store.port
        for pid in (*processes, *pids(ranks)):
            assert listening(pid), "a rank waits for the others' connections"
            assert set(listening(pid).values()) <= {LOOPBACK, "::1"}
        assert listening(os.getpid())[port] == LOOPBACK

        killer = Timer(0.2, os.kill, (processes[1], signal.SIGKILL))
        killer.start()
        with pytest.raises(RankLostError, match=r"^rank 1 was killed by SIGKILL$") as lost:
            other.run(RING, task_of(SMALL["causal"]), None, 0, LIMIT_S, repeats=FOREVER)
        killer.join()
        assert lost.value.status == "crashed"
        check_gone(processes, port)
    finally:
        other.close()
    checked(ranks, "ring", SMALL["causal"])


@pytest.mark.slow  # the others get three seconds to end by themselves
@pytest.mark.parametrize(
    ("stops", "told"), [(True, "rank 1 gave .* and does not run"), (False, "ranks 0, 1 gave .* and run")]
)
def test_ranks_that_give_no_answer_are_said_to_run_or_not(ranks: Ranks, stops: bool, told: str) -> None:
    processes, port = pids(ranks), ranks._store.port
    if stops:
        os.kill(processes[1], signal.SIGSTOP)
    with pytest.raises(RankLostError, match=f"^{told.replace('.*', 'no answer within 1 s')}$") as lost:
        ranks.run(RING, task_of(SMALL["causal"]), None, 0, limit_s=1, repeats=FOREVER)
    assert lost.value.status == "timeout"
    check_gone(processes, port)


def test_an_error_of_one_rank_ends_the_others_that_wait_for_it(ranks: Ranks) -> None:
    processes, port = pids(ranks), ranks._store.port
    with pytest.raises(RankLostError, match=r"^rank 1: RuntimeError: .*size of tensor") as lost:
        ranks.run(Scheme("striped", "ring", "flash"), UNEVEN, None, 0, LIMIT_S)
    assert lost.value.status == "error"
    check_gone(processes, port)
    ranks.close()  # once more does nothing


class MadeStore:
    """Answers of ranks 0 and 1, and the life signs of ranks 0 and 2."""

    def __init__(self) -> None:
        self.beats = 0

    def check(self, keys: list[str]) -> bool:
        return keys[0] in ("answer/0/0", "answer/0/1", "beat/0", "beat/1", "beat/2")

    def get(self, key: str) -> bytes:
        self.beats += 1
        return b'{"answer": 1}' if key.startswith("answer") else b"0" if key == "beat/1" else str(self.beats).encode()


def test_a_rank_that_is_lost_after_its_answer_is_named() -> None:
    made = Ranks.__new__(Ranks)
    made.ranks, made._children, made._store = 3, {}, MadeStore()
    told = r"^rank 1 does not run any more; rank 2 gave no answer within 0 s$"
    with pytest.raises(RankLostError, match=told) as lost:
        made._await("answer/0", 0.02)
    assert lost.value.status == "timeout"
