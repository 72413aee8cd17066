"""Arguments of the native module's entry points, many of them wrong.

What addresses point to has the size that the accepted arguments ask for: the module cannot check it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import torch

from chunkbench.kernels.cpu.planner import COLUMNS

Arguments = dict[str, Any]
SIZES = [-1, 0, 1, 2, 3, 15, 16, 17, 24, 32, 48, 64, 255, 256, 257, 272, 1024, 65535, 65536, 65552]
EDGES = [
    s * (2**power) + d
    for power in (15, 16, 24, 30, 31, 32, 40, 60, 61, 62, 63, 64)
    for s in (1, -1)
    for d in (-1, 0, 1)
]
OTHERS: list[Any] = [None, "", "float32", b"x", 1.5, math.nan, math.inf, True, [], {}, object(), 10**30]
NAMES: list[Any] = [
    "float32",
    "float16",
    "bfloat16",
    "float64",
    "",
    "FLOAT32",
    "float32\0",
    "x" * 10_000,
    "\ud800",
    None,
    3,
]
FLOATS = [0.25, 0.0, 1e-30, 1e30, math.inf, math.nan, 1e300, -0.0]
MOST_NUMBERS = 2**21
"""Larger calls would only wait for memory."""
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Chooser:
    """Draws arguments. `kept` holds what their addresses point to."""

    def __init__(self, native: Any, chance: Random) -> None:
        self.native, self.chance = native, chance
        self.kept: list[Any] = []

    def number(self, right: int, wrong: float = 0.1) -> Any:
        if self.chance.random() >= wrong:
            return right
        return self.chance.choice([self.chance.choice(SIZES), self.chance.choice(EDGES), self.chance.choice(OTHERS)])

    def wild(self, values: list[int]) -> int:
        """One of these values, if 64 bits hold it."""
        return max(-(2**63), min(self.chance.choice(values), 2**63 - 1))

    def numbers(self, right: list[int], wrong: float = 0.1) -> Any:
        """An int64 array, or something like one."""
        if self.chance.random() >= wrong:
            return np.array(right, np.int64)
        values = list(right)
        for _ in range(self.chance.randint(0, 2) if values else 0):
            values[self.chance.randrange(len(values))] = self.wild([*SIZES, *EDGES])
        array = np.array(values, np.int64)
        return self.chance.choice(
            (array, array[: len(array) // 2], np.tile(array, 2), np.repeat(array, 2)[::2], array[::-1], array[None],
             array.astype(np.int32), array.astype(np.float64), array.astype(">i8"), array[:0], values, None,
             np.lib.stride_tricks.as_strided(array, (len(array),), (0,)), torch.from_numpy(array.copy()))
        )  # fmt: skip

    def memory(self, count: int, dtype: Any = "float32") -> int:
        """Address of so many numbers, with nothing behind them."""
        made = np.empty(max(0, count) * (4 if dtype == "float32" else 2), np.uint8)
        made[: 1 << 16] = self.chance.choice([0, 0x3E, 0xFF])
        self.kept.append(made)
        return made.ctypes.data

    def isa(self) -> Any:
        return self.chance.choice(
            [*self.native.isas(), "", "sse2", None] if self.chance.random() < 0.1 else self.native.isas()
        )

    def threads(self) -> Any:
        return self.number(self.chance.randint(1, 3))

    def shape(self) -> Arguments:
        kv_heads = self.chance.choice([1, 1, 2, 3])
        heads = kv_heads * self.chance.choice([1, 1, 2, 5])
        return {
            "dtype": self.chance.choice(list(DTYPES) if self.chance.random() < 0.95 else NAMES),
            "heads": self.number(heads, 0.04),
            "kv_heads": self.number(kv_heads, 0.04),
            "head_dim": self.number(16 * self.chance.randint(1, 6), 0.04),
            "chunk_size": self.number(16 * self.chance.randint(1, 4), 0.04),
        }

    def plan_arguments(self) -> tuple[Arguments, bool]:
        """Rows that share some chunks and have others alone; and whether what they point to is there."""
        shape = self.shape()
        sizes = [shape[name] for name in ("heads", "kv_heads", "head_dim", "chunk_size")]
        fits = (
            all(type(size) is int and size >= 0 for size in sizes)
            and sizes[0] * max(sizes[2:]) * max(sizes) < MOST_NUMBERS
        )
        per_chunk = 2 * sizes[1] * sizes[2] * sizes[3] if fits else 0
        fits = fits and per_chunk < MOST_NUMBERS and 2 * math.prod(max(1, size) for size in sizes) < MOST_NUMBERS
        rows = self.chance.randint(1, 5)
        chunks = [self.memory(per_chunk if fits else 0, shape["dtype"]) for _ in range(self.chance.randint(rows, 12))]
        shared = self.chance.randint(0, len(chunks) - rows) if rows > 1 else 0
        heads = self.chance.randint(1, sizes[1] if fits and sizes[1] else 1)
        items = [[0, shared, 0, rows, -1, 0, 0, 0, heads]] if shared else []
        bounds = sorted(self.chance.randint(shared, len(chunks)) for _ in range(rows - 1))
        for row, (first, end) in enumerate(zip([shared, *bounds], [*bounds, len(chunks)], strict=True)):
            tail = row if end > first else -1
            items.append([first, end - first, rows + row, 1, tail, -1, row if shared else 0, bool(shared), heads])
        for _ in range(self.chance.choice([0, 0, 0, 1, 2])):
            self.chance.choice(items)[self.chance.randrange(9)] = self.wild([*SIZES[:8], *EDGES])
        table = np.array(items, np.int64)
        arguments = {
            **shape,
            "columns": COLUMNS,
            "items": table
            if self.chance.random() < 0.95
            else self.chance.choice([table[:, :8], table.T, table[0], table[::-1]]),
            "chunks": self.numbers(chunks, 0.05),
            "rows": self.numbers([*range(rows), *range(rows)], 0.05),
            "folds": self.numbers(list(range(rows if shared else 0)), 0.05),
            "partial_items": self.number(int(bool(shared)), 0.04),
            "batch": self.number(rows, 0.04),
            "partials": self.number(rows if shared else 0, 0.04),
            "threads": self.threads(),
            "fetch_early": self.chance.random() < 0.5,
            "side_by_side": self.chance.random() < 0.5,
            "isa": self.isa(),
        }
        there = isinstance(arguments["chunks"], np.ndarray) and {int(c) for c in arguments["chunks"].flat} <= set(
            chunks
        )
        batch = arguments["batch"]
        return arguments, fits and there and type(batch) is int and 0 <= batch < 100

    def tensor(self, shape: tuple[int, ...], dtype: str) -> Any:
        """A tensor of a shape, or another object."""
        right = torch.zeros(shape, dtype=DTYPES.get(dtype, torch.float32))
        makes: list[Callable[[], Any]] = [
            *(lambda: right.transpose(0, -1), lambda: right[..., ::2], lambda: right.expand(2, *shape), right.double),
            *(lambda: right.to("meta"), right.to_sparse, lambda: right[:0], right.numpy, right.flatten, right.conj),
            *(lambda: torch.nn.Parameter(right), lambda: torch.zeros(()), lambda: None, lambda: torch.Tensor, object),
            lambda: torch.empty(0).as_strided((0, 2**31, 2**31), (0, 2**31, 1)),
            lambda: torch.zeros(1).expand(shape),
            lambda: right.view(torch.uint8),
        ]
        if self.chance.random() < 0.5:
            return right
        try:
            return self.chance.choice(makes)()
        except (RuntimeError, TypeError, ValueError):
            return right
