"""Forests: random operations on caches, kernels and managers, against float64 and slow, obvious models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, get_args

import numpy as np
import torch

from chunkbench import ChunkAttention, LayeredChunkAttention
from chunkbench.attention.windows import Compress, HeadPolicy
from chunkbench.draft import MOST_ROWS
from chunkbench.kernels import cpu
from chunkbench.kernels.compensation import Compensation
from chunkbench.kernels.cpu.decode import TppNative
from chunkbench.kernels.planners import flat, node_wise, two_phase
from chunkbench.kernels.query_rows import QueryRows
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
STEPS = 20
"""Of a cache that is driven as an engine does it."""


def history(chance: Random) -> list[tuple[Any, ...]]:
    """Actions of tests/attention/contexts.py; some are the steps of several answers, of beams and of drafts."""

    def tokens(most: int) -> list[int]:
        return [chance.randrange(2) for _ in range(chance.randint(1, most))]

    def action() -> list[tuple[Any, ...]]:
        which, drafted = chance.randrange(10), chance.randint(1, 7)
        actions: list[list[tuple[Any, ...]]] = [
            [("add", tokens(70), chance.random() < 0.5)],
            [("add like", which, tokens(9))],
            [("append", chance.randint(1, 5), chance.random() < 0.5)],
            [("append to", {chance.randrange(10): chance.randint(1, 40) for _ in range(chance.randint(1, 3))})],
            [("fork", which)],
            [("truncate", which, chance.random())],
            [("remove", which)],
            [*[("fork", which)] * chance.randint(2, 4), ("append", 1, False)],
            [("fork", which), ("cut", which, 1), ("append", 1, False), ("remove", chance.randrange(10))],
            [("append to", {which: drafted}), ("cut", which, chance.randint(0, drafted))],
        ]
        return chance.choice(actions)

    return [one for _ in range(ACTIONS) for one in action()]


def check_draft(contexts: Contexts, chance: Random) -> None:
    """Drafts of all sequences, chains of different lengths or one tree, where the kernel takes them."""
    if not isinstance(getattr(contexts.attention, "_kernel", None), TppNative):
        return
    lengths = [min(MOST_ROWS, len(tokens)) for tokens in contexts.tokens.values()]
    if chance.random() < 0.5:
        count = chance.randint(1, min(lengths))
        parents = tuple(chance.randrange(-1, token) for token in range(count))
        contexts.check_draft(QueryRows.alike(len(lengths), count, parents))
    else:
        contexts.check_draft(QueryRows(np.array([min(chance.choice([1, 2, 5, MOST_ROWS]), one) for one in lengths])))


def contexts(chance: Random, seed: int) -> Contexts:
    """A cache of one layer or of several, with torch's kernels, or with those of all native instruction sets. Its heads
    may have windows, or it may be one of latents."""
    from tests.attention.latent_contexts import LatentContexts
    from tests.attention.test_exact_windows import WindowContexts
    from tests.attention.test_head_policy import HeadContexts
    from tests.kernels.test_native_attention import Checked

    planner = chance.choice([two_phase, flat, node_wise])
    dtype, (heads, kv_heads) = chance.choice(list(TOLERANCE)), chance.choice(SHAPES)
    dim, chunk, kernel = 16 * chance.randint(1, 5), 16 * chance.randint(1, 3), chance.choice(["torch", "native"])
    kinds = ["instruction sets", "layers", "one layer", "sliding windows", "windows of heads", "latents"]
    kind, kv_dtype, window = chance.choice(kinds), chance.choice(KV_DTYPES), chance.randint(1, 3 * chunk)
    if kind == "latents":
        return LatentContexts(chance, heads, chunk, dtype, planner, seed)
    native = kernel == "native" or kind in ("instruction sets", "sliding windows")
    softcap = chance.choice([0.0, 2.0]) if native and kind != "windows of heads" else 0.0
    if kind == "instruction sets":
        return Checked(heads, kv_heads, dim, chunk, dtype, planner, seed, kv_dtype, softcap)
    options: dict[str, Any] = {"chunk_size": chunk, "dtype": dtype, "kernel": kernel, "kv_dtype": kv_dtype}
    options |= {"softcap": softcap, "retain": chance.random() < 0.5}
    shape, full = (2, heads, dim, kv_heads), [[chance.random() < 0.5 for _ in range(kv_heads)] for _ in range(2)]
    if kind == "sliding windows":
        options |= {"policy": HeadPolicy.of_layers([row[0] for row in full], kv_heads, window), "kernel": "native"}
        return WindowContexts(LayeredChunkAttention(*shape, **options), seed=seed)
    if kind == "windows of heads":
        compensated, compress = chance.choice(get_args(Compensation)), chance.choice(get_args(Compress))
        policy = HeadPolicy(tuple(map(tuple, full)), window, chance.choice([1, 4, 20]), compensated, compress)
        return HeadContexts(LayeredChunkAttention(*shape, **options, policy=policy), seed=seed)
    if kind == "layers":
        return Contexts(LayeredChunkAttention(*shape, **options), seed=seed)
    del options["retain"], options["softcap"]
    return Contexts(ChunkAttention(heads, dim, kv_heads, **options), seed=seed)


def engine(chance: Random, seed: int) -> None:
    """A cache whose sequences are computed in pieces, drafted, cut and forked, as our engine does it."""
    from tests.attention.test_ragged import Server, cut_and_fork

    kernel, partition = chance.choice(["native", "torch"]), chance.choice(["two-phase", "sequence-first"])
    options: dict[str, Any] = {"share": chance.random() < 0.7, "retain": chance.random() < 0.5, "partition": partition}
    server = Server(kernel, chance.choice([1, 2, 4]), seed, kv_dtype=chance.choice(KV_DTYPES), **options)
    cut_and_fork(server, chance, STEPS, chance.randint(0, 7) if server.attention.drafts else 0)


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
        chance, tried = trial.chance, 0
        torch.set_num_threads(chance.randint(1, 3))
        for _ in range(CACHES):
            actions = history(chance)
            act_and_check(contexts(chance, trial.number), actions, lambda made: check_draft(made, chance))
            tried += 2 * len(actions)  # every action and the read after it
        engine(chance, trial.number)
        return tried + STEPS + managers(chance)

    try:
        yield harm
    finally:
        torch.set_num_threads(threads)
