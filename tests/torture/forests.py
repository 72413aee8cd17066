"""Forests: random operations on caches, kernels and managers, against float64 and slow, obvious models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import torch

from chunkbench import ChunkAttention, LayeredChunkAttention
from chunkbench.kernels import cpu
from chunkbench.kernels.planners import flat, node_wise, two_phase
from chunkbench.kv_dtype import KV_DTYPES
from chunkbench.workloads.replay.managers import PrefixManager
from tests.attention.contexts import TOLERANCE, Contexts, act_and_check
from tests.torture.trials import Harm, Trial, Unavailable
from tests.workloads.replay.managers.test_against_reference import BATCH, MANAGERS, Both, soak
from tests.workloads.replay.managers.test_policies import POOLS, random_operations

ACTIONS = 10
CACHES = 3
"""Of a trial; each suffers so many actions."""
SHAPES = [(1, 1), (4, 2), (3, 1), (6, 2)]
"""Heads and KV heads."""
PREFIX_OPERATIONS = 1000


def history(chance: Random) -> list[tuple[Any, ...]]:
    """Actions of tests/attention/contexts.py."""

    def tokens(most: int) -> list[int]:
        return [chance.randrange(2) for _ in range(chance.randint(1, most))]

    def action() -> tuple[Any, ...]:
        which = chance.randrange(10)
        actions: list[tuple[Any, ...]] = [
            ("add", tokens(70), chance.random() < 0.5),
            ("add like", which, tokens(9)),
            ("append", chance.randint(1, 5), chance.random() < 0.5),
            ("append to", {chance.randrange(10): chance.randint(1, 40) for _ in range(chance.randint(1, 3))}),
            ("fork", which),
            ("truncate", which, chance.random()),
            ("remove", which),
        ]
        return chance.choice(actions)

    return [action() for _ in range(ACTIONS)]


def contexts(chance: Random, seed: int) -> Contexts:
    """A cache of one layer or of several, with torch's kernels, or with those of all native instruction sets."""
    from tests.kernels.test_native_attention import Checked

    planner = chance.choice([two_phase, flat, node_wise])
    dtype, (heads, kv_heads) = chance.choice(list(TOLERANCE)), chance.choice(SHAPES)
    dim, chunk, kernel = 16 * chance.randint(1, 5), 16 * chance.randint(1, 3), chance.choice(["torch", "native"])
    kind, kv_dtype = chance.choice(["instruction sets", "layers", "one layer"]), chance.choice(KV_DTYPES)
    if kind == "instruction sets":
        return Checked(heads, kv_heads, dim, chunk, dtype, planner, seed, kv_dtype)
    options: dict[str, Any] = {"chunk_size": chunk, "dtype": dtype, "kernel": kernel, "kv_dtype": kv_dtype}
    if kind == "layers":
        cache = LayeredChunkAttention(2, heads, dim, kv_heads, retain=chance.random() < 0.5, **options)
        return Contexts(cache, seed=seed)
    return Contexts(ChunkAttention(heads, dim, kv_heads, **options), seed=seed)


def managers(chance: Random) -> int:
    """Each manager beside its model, and the tree with what its chunks hold."""
    for manager, model, made in MANAGERS.values():
        arguments = chance.choice(made)
        soak(Both(manager(*arguments), model(*arguments)), chance.randrange(2**60))
    random_operations(PrefixManager(*chance.choice(POOLS), chance.random() < 0.5), chance, PREFIX_OPERATIONS)
    return len(MANAGERS) * BATCH + PREFIX_OPERATIONS


@contextmanager
def random_forests() -> Iterator[Harm]:
    if cpu.native() is None:
        raise Unavailable(cpu.why_missing())
    threads = torch.get_num_threads()

    def harm(trial: Trial) -> int:
        torch.set_num_threads(trial.chance.randint(1, 3))
        for _ in range(CACHES):
            act_and_check(contexts(trial.chance, trial.number), history(trial.chance))
        return 2 * CACHES * ACTIONS + managers(trial.chance)  # every action and the read after it

    try:
        yield harm
    finally:
        torch.set_num_threads(threads)
