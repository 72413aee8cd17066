"""Claims on caches whose KV heads keep different parts of a sequence (RazorAttention, arXiv 2407.15891)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from chunkbench.bench.analysis.derive import Row
from chunkbench.report.claims.evidence import Evidence, Judge
from chunkbench.report.claims.judgement import Figure, Judgement, Stated, absent, decided, held, judged
from chunkbench.report.claims.judges import bounded, largest
from chunkbench.workloads.answers.metrics import METRICS
from chunkbench.workloads.answers.result import AnswersResult
from chunkbench.workloads.decode.head_caches import HeadCache, head_caches, paper_share

_RAZOR = "razor_attn"
_LONG = 20_000
"""Length in tokens at which a fifth of the sequence equals RazorAttention's smallest window. In longer sequences, the
window is a fifth of the sequence."""


def saved_bytes(evidence: Evidence, stated: Stated) -> Judgement:
    """Share of the K/V bytes that RazorAttention saves with its published share of heads and its published window."""
    caches = [cache for cache in head_caches(evidence.groups) if _by_its_own_numbers(cache)]
    found = [Figure.counted(1 - c.bytes, c.row, c.full, place=f"at {c.tokens:,} tokens") for c in caches]
    curve = ", ".join(f"{1 - paper_share(n):.0%} at {n:,}" for n in (4_000, 8_000, _LONG))
    words = f"less K/V: {{each}}; the text's own shares and windows give {curve}, and no more for longer sequences"
    needs = "RazorAttn with its own shares and window, beside ChunkAttn", "razor"
    return bounded(found, stated, words, needs, "{:.1%}", order=largest)


def heads(evidence: Evidence) -> Judgement:
    """Share of needles found with retrieval heads, with random heads and with none."""
    counted = {name: _needles(evidence, name) for name in ("retrieval_heads", "random_heads", "no_heads")}
    if not all(counted.values()):
        return absent("answers with retrieval heads, random heads and none", "razor-answers")
    shares = {name: _sum("found", rows) / _sum("findable", rows) for name, rows in counted.items()}
    retrieval, random, none = shares.values()
    words = f"needles found: {retrieval:.0%} with retrieval heads, {random:.0%} with random ones, {none:.0%} with none"
    figure = Figure.counted(retrieval - random, *(row for found in counted.values() for row in found))
    return judged(held(retrieval > random >= none), words, [figure])


def compensation(evidence: Evidence, stated: Stated) -> Judgement:
    """Share of needles lost without the compensation token."""
    return _loss(evidence, "retrieval_heads_plain", "without the compensation token", stated)


def echo(evidence: Evidence, stated: Stated) -> Judgement:
    """Share of needles lost if retrieval heads are chosen by the induction score alone, not also by the echo score (see
    `HeadScores`)."""
    return _loss(evidence, "induction_heads", "without the heads that only the echo score finds", stated)


def throughput(evidence: Evidence) -> Judgement:
    """Not measured here: the printed figure is the throughput of a whole server on an accelerator."""
    found = [
        cache for cache in head_caches(evidence.groups) if _by_its_own_numbers(cache) and cache.speedup is not None
    ]
    needs = "it needs a server on an accelerator"
    if not found:
        return Judgement("not measured", f"{needs}; `chunkbench run razor` measures the kernel's gain on a CPU")
    gains = ", ".join(f"{c.speedup:.2f}x at {c.tokens:,} tokens, batch {c.axes['batch_size']}" for c in found)
    return Judgement("not measured", f"{needs}; the gain of attention alone on this CPU: {gains}")


def prefix(evidence: Evidence) -> Judgement:
    """A claim of ChunkBench, not of the paper. If about 90% of each sequence is a shared prefix, a cache that
    compresses the prefix has fewer bytes than a cache that keeps the prefix whole.
    """
    for group in evidence.groups:
        found = {cache.row.facts.implementation: cache for cache in head_caches([group])}
        if not {_RAZOR, f"{_RAZOR}_own"} <= found.keys():
            continue
        own, both = found[f"{_RAZOR}_own"], found[_RAZOR]
        ratio = (group.axes.get("n_s") or 0) / both.tokens
        if 0.85 < ratio < 0.95:
            words = f"bytes at r = {ratio:.2f}, of the full cache: {own.bytes:.0%} if a shared prefix stays whole, "
            words += f"{both.bytes:.0%} if the prefix is compressed, too"
            figure = Figure.counted(both.bytes, own.row, both.row, both.full)
            return judged(held(both.bytes < own.bytes), words, [figure])
    return absent("RazorAttn with and without compressed prefixes where prompts share 90%", "razor")


def _loss(evidence: Evidence, name: str, condition: str, stated: Stated) -> Judgement:
    with_all, without = _needles(evidence, "retrieval_heads"), _needles(evidence, name)
    if not with_all or not without:
        return absent(f"answers with retrieval heads, and {condition}", "razor-answers")
    found, less = (round(_sum("found", rows)) for rows in (with_all, without))
    figure = Figure.counted(1 - less / found if found else 0.0, *with_all, *without)
    if not found:
        return judged(
            "cannot tell", f"no needle is found with retrieval heads, so no needle can be lost {condition}", [figure]
        )
    reason = f"{condition} the model finds {less} needles in place of {found}"
    return decided(figure, stated, reason, cause="a small model here, and needles in place of LongBench", cause_above=0)


def _needles(evidence: Evidence, name: str) -> list[Row]:
    """Rows of one choice of heads, at points where the full cache finds needles, in the last run that has such rows."""
    found = evidence.of("razor-answers").last(lambda point: point.rows.get(name))
    return [row for row in found if isinstance(row.facts, AnswersResult) and _sum("findable", [row])]


def _sum(metric: str, rows: Sequence[Row]) -> float:
    return sum(METRICS[metric].value(row.facts) or 0 for row in rows)


def _by_its_own_numbers(cache: HeadCache) -> bool:
    given = (cache.axes.get(axis) for axis in ("window", "kv_share", "compensation"))
    return cache.row.facts.implementation == _RAZOR and not any(given) and cache.axes.get("retrieval") in (None, 15)


JUDGES: Mapping[str, Judge] = {
    "RZ-bytes": partial(saved_bytes, stated=Stated("at least", 0.70, 2)),
    "RZ-heads": heads,
    "RZ-compensation": partial(compensation, stated=Stated("at least", 0.30, 2)),
    "RZ-echo": partial(echo, stated=Stated("at least", 0.10, 2)),
    "RZ-throughput": throughput,
    "RZ-prefix": prefix,
}
