"""Shows the numbers of a trace of requests."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path

import yaml

from chunkbench.bench.analysis.traffic import Hits, Spread, TrafficNumbers
from chunkbench.bench.experiment.spec import MAX_TITLE
from chunkbench.bench.experiment.tree import Forest, lengths_in, nodes_in, tokens_in
from chunkbench.report.model import Column, Output, Table
from chunkbench.report.numbers import NOTHING, count, significant

_LARGEST_CHUNK = 512
_LEGEND = (
    "cache: evicts the least recently used block, serves one request at a time; a prompt hits its leading blocks",
    "block ids are replayed without a clock; no server was measured",
)


def document(name: str, form: str, block_tokens: int, numbers: TrafficNumbers, notes: Sequence[str]) -> Output:
    """Show the numbers of the trace `name`. `form`: name of the trace's format. `block_tokens`: tokens of a block; 0 if
    the trace has no blocks."""
    tables = [_lengths(numbers)]
    if block_tokens:
        tables.append(_caches(numbers.hits, block_tokens))
    rate = f", {significant(numbers.per_s, 3)} requests/s over {numbers.seconds:,.0f} s" if numbers.per_s else ""
    facts = {"format": form, "block_tokens": block_tokens, "notes": notes}
    return Output(
        title=f"{name}: {count(numbers.requests, 'request')}{rate}",
        warnings=tuple(notes),
        headline=_headline(block_tokens, numbers),
        tables=tuple(tables),
        legend=_LEGEND if block_tokens else (),
        footer=(("trace", f"format of {form}"),),
        data=facts | asdict(numbers),
    )


def experiment(path: Path, numbers: TrafficNumbers, block_tokens: int) -> str:
    """The YAML text of an experiment that replays the trace at `path` through cache managers.

    The smallest memory size holds four of the largest requests. The largest memory size holds all different blocks
    of the trace, or all prompt tokens if the trace has no blocks.
    """
    chunk = block_tokens if 0 < block_tokens <= _LARGEST_CHUNK else 16
    least = max(chunk, 4 * int(numbers.prompt_tokens.most + numbers.answer_tokens.most))
    tokens = [numbers.distinct_blocks * block_tokens, int(numbers.requests * numbers.prompt_tokens.mean)]
    most = max(least, tokens[0] or tokens[1])
    sizes = sorted({round(least * (most / least) ** (step / 4)) for step in range(5)})
    title = f"Cache managers, replayed on {path.name}"[:MAX_TITLE]
    # A name without suffix and folder could be the name of a kind of traffic.
    traffic = str(path) if path.suffix or path.parent != Path() else f"./{path}"
    return "\n".join(
        [
            "# Replays a trace through cache managers on a virtual clock: docs/serving.md.",
            "# To compare policies with the optimum: implementations and baseline of replay-policies, batch_size: 1.",
            f"title: {_quoted(title)}",
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
            f"  - {{traffic: {_quoted(traffic)}, memory: {sizes}}}",
            "",
        ]
    )


def cut_lines(path: Path, forest: Forest, at: float) -> list[str]:
    """Lines that describe the forest at `path`, and an example of a sweep with this forest. The forest holds the
    requests of a trace that were live `at` seconds after the start."""
    lengths = lengths_in(forest)
    sizes = f"{count(len(lengths), 'sequence')} in {count(nodes_in(forest), 'node')}"
    tokens = f"{tokens_in(forest):,} tokens stored once, {sum(lengths):,} without sharing"
    name = str(path) if re.fullmatch(r"[\w./-]+", str(path), re.ASCII) else _quoted(str(path))
    used = f"  - {{tree: {name}, heads: 32, kv_heads: 8}}"
    return [f"wrote {path}: {sizes}, live at {at:.15g} s; {tokens}; in an experiment:", "sweep:", used]


def _quoted(text: str) -> str:
    """Text in double quotes, in one line of YAML."""
    quoted: str = yaml.safe_dump(text, default_style='"', width=math.inf, allow_unicode=True)
    return quoted.rstrip("\n")


def _headline(block_tokens: int, numbers: TrafficNumbers) -> str:
    if not block_tokens:
        return "The trace does not say which tokens prompts share."
    endless = numbers.hits[-1]
    return (
        f"{numbers.blocks:,} blocks of {block_tokens} tokens, {numbers.distinct_blocks:,} of them different. "
        f"An endless cache would hold {endless.tokens:.1%} of the prompt tokens."
    )


def _lengths(numbers: TrafficNumbers) -> Table:
    named: list[tuple[str, Spread | None]] = [
        ("prompt, tokens", numbers.prompt_tokens),
        ("answer, tokens", numbers.answer_tokens),
        ("time until a block comes again, s", numbers.reuse_s),
    ]

    def spread(name: str, value: Callable[[Spread], float]) -> Column[tuple[str, Spread]]:
        return Column(name, lambda line: f"{value(line[1]):,.0f}")

    columns = (
        Column("", itemgetter(0), align="left"),
        spread("mean", lambda spread: spread.mean),
        spread("median", lambda spread: spread.p50),
        spread("90th percentile", lambda spread: spread.p90),
        spread("99th percentile", lambda spread: spread.p99),
        spread("most", lambda spread: spread.most),
    )
    return Table("Requests", columns, [line for line in named if line[1] is not None])


def _caches(hits: Sequence[Hits], block_tokens: int) -> Table:
    def tokens(cache: Hits) -> str:
        return NOTHING if cache.cache_blocks is None else f"{cache.cache_blocks * block_tokens:,}"

    columns: tuple[Column[Hits], ...] = (
        Column(
            "cache, blocks",
            lambda cache: "endless" if cache.cache_blocks is None else f"{cache.cache_blocks:,}",
            ("cache,", "blocks"),
        ),
        Column("cache, tokens", tokens, ("cache,", "tokens")),
        Column("blocks that it holds", lambda cache: f"{cache.blocks:.1%}", ("blocks", "it holds")),
        Column("tokens that it holds", lambda cache: f"{cache.tokens:.1%}", ("tokens", "it holds")),
    )
    return Table("Prompts that a cache would hold", columns, hits)
