"""The operations whose growth is measured: names, and the sizes that each is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import cast

from chunkbench.bench.contract import YES, Answer
from chunkbench.bench.experiment.terms import Style
from chunkbench.bench.registry import Registry
from chunkbench.workloads.growth.result import GrowthPoint

Sample = Callable[[], float]
"""Does an operation once, and returns its seconds. What it changed is put back outside of this time."""


@dataclass(frozen=True)
class Operation:
    """An operation and the sizes at which it is measured."""

    label: str
    of: str
    """What its size counts."""
    sizes: tuple[int, int]
    """The smallest and the largest size."""
    file: str
    """Module of this folder with its function."""
    function: str
    style: Style
    bytes_each: int = 0
    """Approximate bytes of memory for each unit of the size, divided by the bytes of an element of K and V."""
    compiles: bool = False

    def availability(self, device: str) -> Answer:
        return YES if device == "cpu" else Answer(False, "growth is measured on CPUs")

    def begin(self, point: GrowthPoint) -> AbstractContextManager[Sample]:
        """Prepare the operation at the size of a point. Imports what it needs."""
        function = getattr(import_module(f"chunkbench.workloads.growth.{self.file}"), self.function)
        return cast("AbstractContextManager[Sample]", function(point))


_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#332288", "#8C564B", "#555555")
_MARKERS = "os^vDP<>*Xhd8p"
_ROW_BYTES = 64 * 8192
"""K and V of a chunk in numbers of a byte: 64 tokens, 32 heads of 128."""


def _row(place: int, label: str, of: str, low: int, high: int, where: str, meaning: str, each: int = 0) -> Operation:
    file, function = where.split(":")
    style = Style(
        column_order=100 + place,
        colour=_COLOURS[place % len(_COLOURS)],
        marker=_MARKERS[place],
        line="solid" if place < len(_COLOURS) else "dashed",
        meaning=meaning,
    )
    return Operation(label, of, (low, high), file, function, style, each)


CHOICES: Mapping[str, Operation] = {
    "join": _row(
        0, "Join, tokens", "tokens", 1000, 1_000_000, "forest:join", "a prompt of this length joins 100 sequences"
    ),
    "join_sequences": _row(
        1, "Join, sequences", "sequences", 10, 100_000, "forest:join_sequences",
        "a prompt of 1,088 tokens joins this number of sequences; all share 1,024 tokens", 1000,
    ),
    "match": _row(
        2, "Match", "rows", 1, 4096, "forest:match", "look up this number of prompts of 1,088 tokens in the prefix tree"
    ),
    "evict": _row(
        3, "Evict", "chunks", 100, 1_000_000, "forest:evict",
        "a prompt of 1,088 tokens joins a full cache of this number of chunks and evicts 17", 400,
    ),
    "plan": _row(
        4, "Plan", "rows", 1, 4096, "step:plan", "make the plan of a step of this number of rows", _ROW_BYTES
    ),
    "append": _row(
        5, "Append", "rows", 1, 4096, "step:append", "append a token to this number of sequences, in tree and cache",
        _ROW_BYTES,
    ),
    "append_bytes": _row(
        6, "Append, bytes alone", "rows", 1, 4096, "step:append_bytes",
        "copy K and V of the same tokens to the same places of memory", _ROW_BYTES,
    ),
    "decode": _row(
        7, "Decode", "rows", 1, 4096, "step:decode",
        "decode attention of this number of rows: 32 heads of 128, 1,024 shared tokens, 16 own ones",
        _ROW_BYTES,
    ),
    "engine_step": _row(
        8, "Engine step", "sequences", 1, 512, "server:engine_step",
        "what our engine adds to the model in a step of this number of sequences: scheduling, prefix tree, sampling",
    ),
    "load": _row(
        9, "Load", "clients", 1, 2000, "server:load",
        "this number of clients send a request each to a server of one line, which answers at once",
    ),
    "replay": _row(
        10, "Replay", "requests", 10_000, 1_000_000, "replays:replays",
        "replay this number of requests of 192 tokens, 128 of them shared, through a prefix tree on a virtual clock",
        1500,
    ),
    "report_rows": _row(
        11, "Report, rows", "rows", 10, 10_000, "reports:rows", "`chunkbench report` of a run with this number of rows"
    ),
    "report_runs": _row(
        12, "Report, runs", "runs", 1, 100, "reports:runs", "`chunkbench report` of this number of runs on one page"
    ),
}  # fmt: skip

OPERATIONS: Registry[Operation] = Registry(CHOICES)
"""The operations that experiments of `kind: growth` can name."""
