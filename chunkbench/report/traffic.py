"""A trace of requests as a document."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from chunkbench.analysis.traffic import Hits, Spread, TrafficNumbers
from chunkbench.report.model import Cell, Column, Document, Table
from chunkbench.report.numbers import NOTHING, count, significant

_LARGEST_CHUNK = 512


def document(name: str, form: str, block_tokens: int, numbers: TrafficNumbers, notes: Sequence[str]) -> Document:
    """The trace `name` of format `form`, whose blocks have `block_tokens` tokens (0: nothing is known of sharing)."""
    tables = [_lengths(numbers)]
    if block_tokens:
        tables.append(_caches(numbers.hits, block_tokens))
    rate = f"{significant(numbers.per_s, 3)} requests/s" if numbers.per_s else "all due at once"
    return Document(
        title=f"{name}: {count(numbers.requests, 'request')}, {rate} over {numbers.seconds:,.0f} s",
        warnings=tuple(notes),
        losses="",
        headline=_headline(block_tokens, numbers),
        tables=tuple(tables),
        statuses=(),
        legend=_legend(block_tokens),
        footer=(("trace", f"format of {form}"),),
    )


def experiment(path: str, numbers: TrafficNumbers, block_tokens: int) -> str:
    """An experiment that replays the trace at `path` through cache managers, as YAML.

    The smallest memory holds four requests of the largest size, the largest one all different blocks.
    """
    least = 4 * int(numbers.prompt_tokens.most + numbers.answer_tokens.most)
    tokens = [numbers.distinct_blocks * block_tokens, int(numbers.requests * numbers.prompt_tokens.mean)]
    most = max(least, tokens[0] or tokens[1])
    sizes = sorted({round(least * (most / least) ** (step / 4)) for step in range(5)})
    chunk = block_tokens if 0 < block_tokens <= _LARGEST_CHUNK else 16
    return "\n".join(
        [
            "# Replays a trace through cache managers on a virtual clock: docs/managers.md.",
            f'title: "Cache managers, replayed on {Path(path).name}"',
            "kind: replay",
            "",
            "implementations: [paged, paged_prefix, prefix_tree, radix_tree]",
            "baseline: prefix_tree",
            f"requests: {numbers.requests}",
            "arrival_seeds: 1",
            "case_limit: 10m",
            "budget: 60m",
            "",
            "defaults:",
            f"  block_size: {chunk}",
            f"  chunk_size: {chunk}",
            "",
            "sweep:",
            f"  - {{traffic: {json.dumps(path)}, memory: {sizes}}}",
            "",
        ]
    )


def _headline(block_tokens: int, numbers: TrafficNumbers) -> str:
    if not block_tokens:
        return "The trace says nothing about what prompts share."
    endless = numbers.hits[-1]
    return (
        f"{numbers.blocks:,} blocks of {block_tokens} tokens, {numbers.distinct_blocks:,} of them different. "
        f"An endless cache would hold {endless.tokens:.1%} of the prompt tokens."
    )


def _lengths(numbers: TrafficNumbers) -> Table:
    named: list[tuple[str, Spread | None]] = [
        ("prompt, tokens", numbers.prompt_tokens),
        ("answer, tokens", numbers.answer_tokens),
        ("until a block comes again, s", numbers.reuse_s),
    ]
    columns = (
        Column("", ("",), "left"),
        *(Column(name, (name,)) for name in ("mean", "median", "90th percentile", "99th percentile", "most")),
    )
    rows = tuple(
        (Cell(name), *(Cell(f"{value:,.0f}") for value in (s.mean, s.p50, s.p90, s.p99, s.most)))
        for name, s in named
        if s is not None
    )
    return Table("Requests", columns, rows, keys=1)


def _caches(hits: Sequence[Hits], block_tokens: int) -> Table:
    columns = (
        Column("cache, blocks", ("cache,", "blocks")),
        Column("cache, tokens", ("cache,", "tokens")),
        Column("blocks that it holds", ("blocks", "it holds")),
        Column("tokens that it holds", ("tokens", "it holds")),
    )
    rows = []
    for one in hits:
        size = one.cache_blocks
        sizes = ("endless", NOTHING) if size is None else (f"{size:,}", f"{size * block_tokens:,}")
        rows.append(tuple(map(Cell, (*sizes, f"{one.blocks:.1%}", f"{one.tokens:.1%}"))))
    return Table("Prompts that a cache would hold", columns, tuple(rows), keys=1)


def _legend(block_tokens: int) -> tuple[str, ...]:
    if not block_tokens:
        return ()
    return (
        "cache: least recently used blocks leave first; requests one at a time; a prompt hits its leading blocks",
        "a replay of ids on no clock: no server was measured",
    )
