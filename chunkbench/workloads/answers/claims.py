"""Claims on caches whose KV heads keep different parts of a sequence (RazorAttention, arXiv 2407.15891)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from chunkbench.analysis.derive import Row
from chunkbench.paper.claims.evidence import Evidence
from chunkbench.paper.claims.judgement import Figure, Judge, Judgement, Stated, absent, decided, judged
from chunkbench.workloads.answers.metrics import METRICS
from chunkbench.workloads.answers.result import AnswersResult
from chunkbench.workloads.decode.head_cache_numbers import HeadCache, head_caches, paper_share

_RAZOR = "razor_attn"
_LONG = 20_000
"""From so many tokens on a fifth of the sequence is more than the least window."""


def saved_bytes(evidence: Evidence) -> Judgement:
    """Bytes that RazorAttention's own numbers save, counted in the pools."""
    found = [cache for cache in _caches(evidence) if _by_its_own_numbers(cache)]
    if not found:
        return absent("RazorAttn with its own shares and window, beside ChunkAttn", "razor")
    figures = [Figure(1 - c.bytes, 1 - c.bytes, 1 - c.bytes, (c.row, c.full)) for c in found]
    listed = ", ".join(f"{1 - c.bytes:.1%} at {c.tokens:,} tokens" for c in found)
    best = max(figures, key=lambda figure: figure.value)
    curve = ", ".join(f"{1 - paper_share(n):.0%} at {n:,}" for n in (4_000, 8_000, _LONG))
    reason = f"less K/V: {listed}; by the text's own shares and windows it is {curve}, and no more beyond"
    return decided(best, Stated("at least", 0.70, 2), reason, figures)


def heads(evidence: Evidence) -> Judgement:
    """Needles found with retrieval heads, with random ones, with none."""
    counted = {name: _needles(evidence, name) for name in ("retrieval_heads", "random_heads", "no_heads")}
    if not all(counted.values()):
        return absent("answers with retrieval heads, random heads and none", "razor-answers")
    shares = {name: _sum("found", rows) / _sum("findable", rows) for name, rows in counted.items()}
    retrieval, random, none = shares.values()
    words = f"needles found: {retrieval:.0%} with retrieval heads, {random:.0%} with random ones, {none:.0%} with none"
    rows = tuple(row for found in counted.values() for row in found)
    figure = Figure(retrieval - random, retrieval - random, retrieval - random, rows)
    return judged("holds" if retrieval > random >= none else "does not hold", words, [figure])


def compensation(evidence: Evidence) -> Judgement:
    """Needles lost without the compensation token."""
    return _loss(evidence, "retrieval_heads_plain", "without the compensation token", 0.30)


def echo(evidence: Evidence) -> Judgement:
    """Needles lost without the heads that the echo score alone finds."""
    return _loss(evidence, "induction_heads", "without the heads that only the echo score finds", 0.10)


def throughput(evidence: Evidence) -> Judgement:
    """The text's figure is of a whole server on an accelerator."""
    found = [cache for cache in _caches(evidence) if _by_its_own_numbers(cache) and cache.speedup is not None]
    needs = "it needs a server on an accelerator"
    if not found:
        return Judgement("not measured", f"{needs}; `chunkbench run razor` measures the kernel's gain on a CPU")
    gains = ", ".join(f"{c.speedup:.2f}x at {c.tokens:,} tokens, batch {c.axes['batch_size']}" for c in found)
    return Judgement("not measured", f"{needs}; the gain of attention alone on this CPU: {gains}")


def prefix(evidence: Evidence) -> Judgement:
    """Ours: bytes where prompts share 90%, if a shared prefix stays whole, and if it is compressed."""
    for group in evidence.groups:
        found = {cache.row.facts.implementation: cache for cache in head_caches([group])}
        if not {_RAZOR, f"{_RAZOR}_own"} <= found.keys():
            continue
        own, both = found[f"{_RAZOR}_own"], found[_RAZOR]
        ratio = (group.axes.get("n_s") or 0) / both.tokens
        if 0.85 < ratio < 0.95:
            words = f"of the full bytes at r = {ratio:.2f}: {own.bytes:.0%} if a shared prefix stays whole, "
            words += f"{both.bytes:.0%} if it is compressed, too"
            figure = Figure(both.bytes, both.bytes, both.bytes, (own.row, both.row, both.full))
            return judged("holds" if both.bytes < own.bytes else "does not hold", words, [figure])
    return absent("RazorAttn with and without compressed prefixes where prompts share 90%", "razor")


def _loss(evidence: Evidence, name: str, words: str, stated: float) -> Judgement:
    with_all, without = _needles(evidence, "retrieval_heads"), _needles(evidence, name)
    if not with_all or not without:
        return absent(f"answers with retrieval heads, and {words}", "razor-answers")
    found, less = (round(_sum("found", rows)) for rows in (with_all, without))
    rows = (*with_all, *without)
    if not found:
        figure = Figure(0.0, 0.0, 0.0, rows)
        return judged("cannot tell", f"no needle is found with retrieval heads, so none is lost {words}", [figure])
    lost = 1 - less / found
    figure = Figure(lost, lost, lost, rows)
    reason = f"{words} {less} needles are found in place of {found}"
    return decided(
        figure, Stated("at least", stated, 2), reason, [figure], "a small model, needles in place of LongBench"
    )


def _needles(evidence: Evidence, name: str) -> list[Row]:
    """Rows of a choice of heads at points where something is lost, in the last run that has them."""
    found = {str(group.axes): group.rows[name] for group in evidence.groups if name in group.rows}
    return [row for row in found.values() if isinstance(row.facts, AnswersResult) and _sum("findable", [row])]


def _sum(metric: str, rows: Sequence[Row]) -> float:
    return sum(METRICS[metric].value(row.facts) or 0 for row in rows)


def _caches(evidence: Evidence) -> Iterator[HeadCache]:
    yield from head_caches(evidence.groups)


def _by_its_own_numbers(cache: HeadCache) -> bool:
    given = (cache.axes.get(axis) for axis in ("window", "kv_share", "compensation"))
    return cache.row.facts.implementation == _RAZOR and not any(given) and cache.axes.get("retrieval") in (None, 15)


JUDGES: Mapping[str, Judge] = {
    "RZ-bytes": saved_bytes,
    "RZ-heads": heads,
    "RZ-compensation": compensation,
    "RZ-echo": echo,
    "RZ-throughput": throughput,
    "RZ-prefix": prefix,
}
