"""Claims of the PagedAttention paper (SOSP 2023): its evaluation, replayed, and its kernel, measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from chunkbench.bench.analysis.derive import Row
from chunkbench.llama import SHAPES
from chunkbench.report.claims.evidence import Evidence, Judge
from chunkbench.report.claims.judgement import Figure, Judgement, Stated, absent, decided, held, replayed
from chunkbench.report.claims.judges import fixed
from chunkbench.report.printed import PAGED_ATTENTION_SETUP, paged_attention
from chunkbench.workloads.replay.claims import NEAR, replays
from chunkbench.workloads.replay.metrics import METRICS
from chunkbench.workloads.replay.paper_a100 import Opt13bA100
from chunkbench.workloads.replay.printed import OBJECTIVE_S, rate_ratios
from chunkbench.workloads.replay.result import ReplayResult

_BASIC, _ANSWERS, _BLOCKS = "replay-paged", "replay-paged-answers", "replay-paged-blocks"
_EXACT, _MAX = "contiguous_exact", "contiguous_max"
_SLOTS = 12 * 2**30 // (800 * 2**10)
"""Number of tokens whose K and V fit into 12 GB, at 800 KB each."""
_BEAMS = 0.55


def throughput(evidence: Evidence) -> Judgement:
    """Sustained rate of paged memory over that of an allocator that knows all lengths, with the lengths of ShareGPT."""
    found = _rate_ratio(evidence, "paged", _EXACT, traffic="sharegpt")
    if found is None:
        return absent("replays at several rates", _BASIC)
    over_max = _rate_ratio(evidence, "paged", _MAX, traffic="sharegpt")
    low, high = (_stated("12", quantity=f"rate_over_exact_{end}") for end in ("low", "high"))
    words = f"{found.value:.2f} times the rate of an allocator that knows all lengths (printed: {low:g} to {high:g})"
    if over_max:
        low, high = (_stated("12", quantity=f"rate_over_max_{end}") for end in ("low", "high"))
        words += f", {over_max.value:.2f} times that of reservation for the longest (printed: {low:g} to {high:g})"
    return replayed(words, [found], Stated("at least", 2.0, 0).verdict(found.low, found.high) == "holds")


def answers(evidence: Evidence) -> Judgement:
    """Growth of the ratio of `throughput` from one answer to beam search of width 6, with the lengths of Alpaca."""
    one = _rate_ratio(evidence, "paged", _EXACT, traffic="alpaca")
    beams = _rate_ratio(evidence, "paged", _EXACT, traffic="alpaca", beams=6)
    if one is None or beams is None:
        return absent("replays of one and of several answers", _ANSWERS)
    stated = _stated("14", beams="", quantity="rate_over_exact"), _stated("14", beams="6", quantity="rate_over_exact")
    words = (
        f"{one.value:.2f} times the rate with one answer (printed: {stated[0]:g}), {beams.value:.2f} times with 6 "
        f"beams (printed: {stated[1]:g}); beams are drawn"
    )
    return replayed(words, [beams, one], beams.value > one.value > 1)


def prefix(evidence: Evidence, n_s: int) -> Judgement:
    """Sustained rate with the shared prefix in memory once, over that of an allocator that knows all lengths."""
    found = _rate_ratio(evidence, "paged_prefix", _EXACT, n_s=n_s)
    if found is None:
        return absent("replays with a shared prefix", "replay-paged-prefix")
    stated = _stated("16", n_s=str(n_s))
    words = f"{found.value:.2f} times the rate; the lengths of the sentences are Alpaca's, the text prints none"
    return replayed(words, [found], abs(found.value / stated - 1) <= NEAR)


def chat(evidence: Evidence) -> Judgement:
    """Ratio of sustained rates as in `throughput`, for conversations whose prompts are cut to 1,024 tokens."""
    found = _rate_ratio(evidence, "paged", _EXACT, traffic="chat")
    if found is None:
        return absent("replays of conversations", "replay-paged-chat")
    words = f"{found.value:.2f} times the rate of the allocator that knows all lengths"
    return replayed(words, [found], abs(found.value / _stated("17") - 1) <= NEAR)


def waste(evidence: Evidence, kind: str, manager: str = _MAX) -> Judgement:
    """Share of a kind in the memory that sequences have taken, mean over time. It is near if it differs by at most 15%
    of the stated share, or of the rest of the memory, whichever is less.
    """
    stated = _stated("2", manager=manager, quantity=kind)
    found = _seeds(evidence, manager, kind, traffic="sharegpt", rate=120)
    if found is None:
        return absent("replays at 2 requests per second", _BASIC)
    words = f"{found.value:.1%} of the memory (printed: {stated:.1%}, a transcribed label)"
    return replayed(words, [found], abs(found.value - stated) <= NEAR * min(stated, 1 - stated))


def batches(evidence: Evidence) -> Judgement:
    """Mean batch with paged memory, over that with an allocator that knows all lengths."""
    axes = {"traffic": "sharegpt", "rate": 120}
    paged, exact, most = (_seeds(evidence, manager, "mean_batch", **axes) for manager in ("paged", _EXACT, _MAX))
    if not (paged and exact and most and exact.low and most.value):
        return absent("replays at 2 requests per second", _BASIC)
    rows = (*paged.rows, *exact.rows, *most.rows)
    found = Figure(paged.value / exact.value, paged.low / exact.high, paged.high / exact.low, rows)
    words = (
        f"{paged.value:.1f} requests (the step time is fitted to the printed 30.4): {found.value:.1f} times those with "
        f"exact reservation (printed: 2.2), {paged.value / most.value:.1f} times those with the longest (printed: 4.3)"
    )
    return replayed(words, [found], abs(found.value / 2.2 - 1) <= NEAR)


def saved(evidence: Evidence, samples: int | None = None, beams: int | None = None) -> Judgement:
    """Share of the K/V memory that the answers of one request share, over all rates."""
    stated = _stated("15", samples=str(samples or ""), beams=str(beams or ""))
    rows = _rows(evidence, "paged", traffic="alpaca", samples=samples, beams=beams)
    shares = (METRICS["saved"].value(facts) for _, facts in rows)
    found = _median([share for share in shares if share is not None], rows)
    if found is None:
        return absent("replays of several answers", _ANSWERS)
    drawn = (
        "; each beam continues a parent drawn with equal chances, so fewer beams stay apart than with real scores"
        if beams
        else ""
    )
    words = f"{found.value:.1%} of the memory (printed: {stated:.1%}, a transcribed label){drawn}"
    return replayed(words, [found], abs(found.value / stated - 1) <= NEAR)


def parallel(evidence: Evidence) -> Judgement:
    """Share of prompts in the memory of parallel sampling, and share of the memory that beams have in common."""
    paged = [(row, facts) for row, facts in replays(evidence) if facts.implementation == "paged"]
    prompts = [(METRICS["prompt_share"].value(facts) or 0.0, row) for row, facts in paged if facts.samples]
    beams = [(METRICS["saved"].value(facts) or 0.0, row) for row, facts in paged if facts.beams]
    if not prompts or not beams:
        return absent("parallel sampling and beam search", _ANSWERS)
    found = Figure.of_repeats([share for share, _ in prompts], (row for _, row in prompts))
    words = (
        f"lengths and beams are drawn: prompts are {_range(prompts)} of the memory in parallel sampling, and beams "
        f"share {_range(beams)} of theirs (the text: {_BEAMS:.0%})"
    )
    return replayed(words, [found])


def _range(shares: Sequence[tuple[float, Row]]) -> str:
    values = [share for share, _ in shares]
    return f"{min(values):.0%} to {max(values):.0%}"


def kernel(evidence: Evidence) -> Judgement:
    """Latency of the paged kernel over that of the same kernel on contiguous K/V; the worst point of Figure 18a
    decides.
    """
    axes: dict[str, Any] = dict.fromkeys(("n_p", "n_s", "n_c", "batch_size", "heads", "kv_heads", "head_dim"), ...)
    points = list(evidence.points("paged_attn_whole", **axes, chunk_size=...))
    ratios = [
        (point, ratio) for point in points if (ratio := point.ratio("paged_attn", "paged_attn_whole")) is not None
    ]
    if not ratios:
        return absent("the paged kernel beside the same kernel on contiguous K/V", "paged-kernel")
    point, worst = max(ratios, key=lambda pair: pair[1].value)
    where = f"batch {point.axes['batch_size']}, {point.axes['n_p']} tokens; {len(ratios)} points"
    words = (
        f"blocks of {point.axes['block_size']} tokens take {worst.value:.2f} times as long at worst ({where}). The "
        "text's kernels run on a GPU; the bars of its figure lie partly outside 20% to 26% (transcribed)"
    )
    stated = Stated("at least", 1.20, 2) if worst.low < 1.20 else Stated("at most", 1.26, 2)
    cause = "this kernel reads tiles of 16 tokens in any case"
    return decided(worst, stated, words, [figure for _, figure in ratios], cause)


def block(evidence: Evidence) -> Judgement:
    """Largest block size whose latency is within 15% of the best, with the lengths of each of two workloads."""
    block_sizes: dict[str, int] = {}
    used: list[Row] = []
    worst = 0.0
    for traffic in ("sharegpt", "alpaca"):
        rows = _rows(evidence, "paged", traffic=traffic, block_size=..., experiment=_BLOCKS)
        by_size = {facts.block_size: row.derived.latency_us for row, facts in rows if row.derived.latency_us}
        if len(by_size) < 2:
            return absent("replays over sizes of blocks", _BLOCKS)
        best = min(by_size.values())
        block_sizes[traffic] = max(size for size, us in by_size.items() if us <= (1 + NEAR) * best)
        worst = max(worst, by_size[max(by_size)] / best)
        used += [row for row, _ in rows]
    words = (
        f"blocks of up to {block_sizes['sharegpt']} tokens come within {NEAR:.0%} of the best latency with ShareGPT's "
        f"lengths, of up to {block_sizes['alpaca']} with Alpaca's; the largest take up to {worst:.1f} times as long. "
        "Replays omit the cost of small blocks in the kernel"
    )
    agrees = block_sizes["sharegpt"] >= 128 and block_sizes["alpaca"] >= 32
    return replayed(words, [Figure.counted(float(block_sizes["sharegpt"]), *used)], agrees)


def recompute(evidence: Evidence) -> Judgement:
    """Latency where preempted requests are computed again, over latency where they are swapped; the worst block size
    decides.
    """
    swapped = {
        facts.block_size: row
        for row, facts in _rows(evidence, "paged_swap", traffic="sharegpt", block_size=..., experiment=_BLOCKS)
    }
    ratios = [
        Figure.counted(value, row, swapped[facts.block_size])
        for row, facts in _rows(evidence, "paged", traffic="sharegpt", block_size=..., experiment=_BLOCKS)
        if facts.block_size in swapped
        and (value := _over(row, swapped[facts.block_size])) is not None
        and any(seed.preemptions for seed in facts.replays)
    ]
    if not ratios:
        return absent("replays with swapping and without", _BLOCKS)
    worst = max(ratios, key=lambda figure: figure.value)
    words = (
        f"requests computed again take at most {worst.value:.2f} times the latency of swapped ones over {len(ratios)} "
        "sizes of blocks; read as 'at most 20% slower'. Copies at this machine's rate, computing as on an A100"
    )
    return replayed(words, [worst, *ratios], Stated("at most", 1.2, 1).verdict(worst.low, worst.high) == "holds")


def _stated(figure: str, **named: str) -> float:
    """The single value that the paper prints for this figure and these names."""
    wanted = {"figure": figure, **named}
    (row,) = (row for row in paged_attention() if all(row[name] == value for name, value in wanted.items()))
    return float(row["value"])


def _rows(evidence: Evidence, manager: str, **axes: Any) -> list[tuple[Row, ReplayResult]]:
    """Replays of a manager in the paper's setup: one answer, no shared prefix, blocks of 16 tokens. `axes` overrides
    the setup; `...` allows any value.
    """
    blocks, step_time = {} if manager in (_EXACT, _MAX) else {"block_size": 16}, Opt13bA100().words
    wanted = {"samples": None, "beams": None, "n_s": 0, "schedule": None, **blocks, **axes}
    return [
        (row, facts)
        for row, facts in replays(evidence)
        if (str(facts.model), facts.memory, facts.implementation) == (*PAGED_ATTENTION_SETUP, manager)
        and facts.step_time.startswith(step_time)  # the description may continue with the time of copies
        and all(value is ... or (getattr(facts, name) or None) == (value or None) for name, value in wanted.items())
    ]


def _rate_ratio(evidence: Evidence, manager: str, base: str, **axes: Any) -> Figure | None:
    """Sustained rate over that of another manager: median and range over the arrival seeds."""
    found, base_found = (_rows(evidence, name, **axes) for name in (manager, base))
    if not found or not base_found:
        return None
    rates: dict[str, set[int | None]] = {}
    for _, facts in found:
        rates.setdefault(facts.experiment, set()).add(facts.rate)
    name = max(rates, key=lambda name: len(rates[name]))  # of several experiments, take the one with the most rates
    sides = [[row for row, facts in side if facts.experiment == name] for side in (found, base_found)]
    ratios = rate_ratios(sides[0], sides[1], OBJECTIVE_S)
    if not ratios:
        return None
    return Figure.of_repeats(ratios, (row for side in sides for row in side))


def _seeds(evidence: Evidence, manager: str, metric: str, **axes: Any) -> Figure | None:
    """A metric over the arrival seeds: median and range."""
    rows = _rows(evidence, manager, **axes)
    return _median([value for _, facts in rows for value in METRICS[metric].known(facts)], rows)


def _median(found: Sequence[float], rows: Sequence[tuple[Row, ReplayResult]]) -> Figure | None:
    return Figure.of_repeats(found, (row for row, _ in rows)) if found else None


def _over(row: Row, base: Row) -> float | None:
    us, base_us = row.derived.latency_us, base.derived.latency_us
    return us / base_us if us and base_us else None


_LABEL, _ALPACA = (
    _stated("13", traffic=traffic, manager=manager) for traffic, manager in (("sharegpt", _MAX), ("alpaca", "paged"))
)
_HELD = _SLOTS / (19.31 + math.e * 58.45 / 2 + 8)
"""Requests that the memory holds, on average. A request in service has its prompt, half of its answer, and half a
block. Long answers are served longer: for a log-normal law with sigma 1 (our assumption), their mean is e times the
mean of all.
"""
_SHAPE = SHAPES["llama2-70b"]
_GROUPED = _SHAPE.kv_bytes()
_UNGROUPED = _SHAPE.model_copy(update={"num_key_value_heads": _SHAPE.num_attention_heads}).kv_bytes()
"""Bytes of a token with 8 K/V heads, and with as many K/V heads as query heads."""


JUDGES: Mapping[str, Judge] = {
    "PA-throughput": throughput,
    "PA-static": fixed("not measured", "no manager of replays batches requests that begin and end together"),
    "PA-batch": fixed(
        held(_SLOTS // 2048 == _LABEL),
        f"floor({_SLOTS:,} tokens / 2048) = {_SLOTS // 2048}; the label of Figure 13 is {_LABEL:.2f}",
        float(_SLOTS // 2048),
    ),
    "PA-batches": batches,
    "PA-waste": partial(waste, kind="used"),
    "PA-reserved": partial(waste, kind="reserved"),
    "PA-internal": partial(waste, kind="internal_fragmentation"),
    "PA-external": partial(waste, kind="external_fragmentation"),
    "PA-used": partial(waste, kind="used", manager="paged"),
    "PA-parallel": parallel,
    "PA-samples2": partial(saved, samples=2),
    "PA-samples4": partial(saved, samples=4),
    "PA-samples6": partial(saved, samples=6),
    "PA-beams2": partial(saved, beams=2),
    "PA-beams4": partial(saved, beams=4),
    "PA-beams6": partial(saved, beams=6),
    "PA-answers": answers,
    "PA-prefix80": partial(prefix, n_s=80),
    "PA-prefix341": partial(prefix, n_s=341),
    "PA-chat": chat,
    "PA-kernel": kernel,
    "PA-block": block,
    "PA-recompute": recompute,
    "GQA-memory": fixed(
        "holds",
        f"Llama2-70B: {_GROUPED // 1024} KiB a token in place of {_UNGROUPED // 1024}: {_UNGROUPED / _GROUPED:g} times",
        _UNGROUPED / _GROUPED,
    ),
    "X-kernel": fixed(
        "not measured",
        "the bars of Figure 18a are not printed as numbers; another group reads some of them outside the text's range",
    ),
    "X-swapping": fixed(
        "holds",
        "the text also says that recomputing and swapping take about the same time with blocks of 16 to 64 tokens: "
        "about 100%, not 20%. Read as 'at most 20% slower', the sentence agrees",
        1.0,
    ),
    "X-weights": fixed("holds", "175e9 parameters of 2 bytes are 350 GB; Table 1 prints 346", 175e9 * 2 / 1e9),
    "X-alpaca": fixed(
        held(_HELD > _ALPACA),
        f"12 GB hold about {_HELD:.0f} requests of Alpaca's mean lengths, if these are log-normal with sigma 1; the "
        f"label is {_ALPACA:g}: arrivals limit it",
        _HELD,
    ),
}
