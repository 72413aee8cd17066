"""Claims of the PagedAttention paper (SOSP 2023): its evaluation, replayed, and its kernel, measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from chunkbench.bench.analysis.derive import Row
from chunkbench.llama import SHAPES
from chunkbench.report.claims.evidence import Evidence, Judge
from chunkbench.report.claims.judgement import UNCLEAR, Figure, Judgement, Stated, absent, held, replayed
from chunkbench.report.claims.judges import bounded, equal, fixed
from chunkbench.report.printed import PAGED_ATTENTION_SETUP, paged_attention
from chunkbench.workloads.replay.claims import NEAR, replays
from chunkbench.workloads.replay.metrics import METRICS
from chunkbench.workloads.replay.paper_a100 import Opt13bA100
from chunkbench.workloads.replay.printed import OBJECTIVE_S, REPLAYED_AS, rate_ratios
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
    return _against(Stated("at least", 2.0, 1, most=4.0), words, [found])


def answers(evidence: Evidence) -> Judgement:
    """Ratio of sustained rates as in `throughput`, for beam search of width 6 with the lengths of Alpaca. The ratio
    should be larger than with one answer, and both above 1.
    """
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
    """Judges a ratio of sustained rates: the rate of a manager that stores the shared prefix once, divided by the rate
    of an allocator that stores it for each request and knows all lengths."""
    found = _rate_ratio(evidence, "paged_prefix", _EXACT, traffic=REPLAYED_AS["wmt16"], n_s=n_s)
    if found is None:
        return absent("replays with a shared prefix", "replay-paged-prefix")
    stated = _stated("16", n_s=str(n_s))
    words = (
        f"{found.value:.2f} times the rate; Alpaca's lengths stand for the translations', which the text does not print"
    )
    return replayed(words, [found], abs(found.value / stated - 1) <= NEAR)


def chat(evidence: Evidence) -> Judgement:
    """Ratio of sustained rates as in `throughput`, for conversations whose prompts are cut to 1,024 tokens."""
    found = _rate_ratio(evidence, "paged", _EXACT, traffic="chat")
    if found is None:
        return absent("replays of conversations", "replay-paged-chat")
    words = f"{found.value:.2f} times the rate of the allocator that knows all lengths"
    return replayed(words, [found], abs(found.value / _stated("17") - 1) <= NEAR)


def waste(evidence: Evidence, kind: str, manager: str = _MAX) -> Judgement:
    """Share of the slots of this kind in the memory that sequences have taken, as a mean over time. The share agrees
    with a printed share s if they differ by at most 15% of s or of 1 - s, whichever is smaller.
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
    """Share of the memory that holds prompts, in parallel sampling. The reason also names the share of memory that
    beams save by sharing, in beam search.
    """
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
    """Latency of the paged kernel over that of the same kernel on contiguous K/V, at the points of Figure 18a."""
    axes: dict[str, Any] = dict.fromkeys(("n_p", "n_s", "n_c", "batch_size", "heads", "kv_heads", "head_dim"), ...)
    place = "(batch {batch_size}, {n_p} tokens, blocks of {block_size})"
    ratios = evidence.ratios("paged_attn", "paged_attn_whole", place, **axes, chunk_size=...)
    words = "blocks take {least:.2f} to {most:.2f} times as long at {count} points; {it:.2f} {where} decides"
    needs = "the paged kernel beside the same kernel on contiguous K/V", "paged-kernel"
    cause = "this kernel reads tiles of 16 tokens in any case, and the text's run on a GPU"
    return bounded(ratios, Stated("at least", 1.20, 2, most=1.26), words, needs, cause=cause, cause_above=1.0)


def block(evidence: Evidence) -> Judgement:
    """Largest block size whose latency is at most 15% above the best latency, with the lengths of ShareGPT. The lengths
    of Alpaca are checked too.
    """
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
    """Latency of replays that compute preempted requests again, divided by the latency of replays that swap them. The
    worst block size decides.
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
        "sizes of blocks; copies at this machine's rate, computing as on an A100"
    )
    return _against(Stated("at most", 1.20, 2), words, [worst, *ratios])


def last_block(evidence: Evidence) -> Judgement:
    """Empty slots per live request, in blocks, at the worst recorded moment. Only replays of requests with one answer
    are used.
    """
    found = []
    for row, facts in _rows(evidence, "paged", block_size=..., n_s=...):
        moments = [moment for seed in facts.replays for moment in seed.timeline if moment.batch]
        empty = [(moment.reserved + moment.internal_fragmentation) / moment.batch for moment in moments]
        if empty:
            found.append(Figure.counted(max(empty) / facts.block_size, row))
    if not found:
        return absent("replays of paged memory", _BASIC)
    stated = Stated("at most", 1.0, 2)
    worst, *others = stated.worst_first(found)
    words = f"at the worst moment of {len(found)} replays {worst.value:.2f} blocks are empty for each live request"
    return _against(stated, words, [worst, *others])


_SAYS = {
    "holds": "this agrees with the text",
    "more than stated": "this is more than the text states",
    "cannot tell": UNCLEAR,
    "wrong": "the text says otherwise",
}


def _against(stated: Stated, words: str, figures: Sequence[Figure]) -> Judgement:
    """The judgement of replayed figures by a bound; the first figure decides."""
    first = figures[0]
    return replayed(f"{words}; {_SAYS[stated.verdict(first.low, first.high)]}", figures)


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


_LABEL = _stated("13", traffic="sharegpt", manager=_MAX)
_WEIGHTS_GB, _KV_GB, _A100_GB = 13 * 2, 12, 40
"""GB of OPT-13B's weights in 16-bit numbers, of its K/V (Table 1), and of its GPU."""
_OPT175B_GB = 175 * 2
_WHOLE = _A100_GB * 2**30 // (800 * 2**10 * 2048)
"""Requests of 2048 tokens that fit if K and V had the whole GPU."""
_SHAPE = SHAPES["llama2-70b"]
_GROUPED = _SHAPE.kv_bytes()
_UNGROUPED = _SHAPE.model_copy(update={"num_key_value_heads": _SHAPE.num_attention_heads}).kv_bytes()
"""Bytes of K and V of a token of Llama2-70B. `_GROUPED`: with its 8 K/V heads. `_UNGROUPED`: with as many K/V heads as
query heads.
"""


JUDGES: Mapping[str, Judge] = {
    "PA-throughput": throughput,
    "PA-static": fixed("not measured", "no manager of replays batches requests that begin and end together"),
    "PA-batch": equal(
        _SLOTS // 2048,
        _LABEL,
        2,
        f"floor({_SLOTS:,} tokens / 2048) = {_SLOTS // 2048}; the label of Figure 13 is {_LABEL:.2f}",
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
    "PA-last-block": last_block,
    "PA-memory13b": fixed(
        held((round(_WEIGHTS_GB / _A100_GB, 2), round(_KV_GB / _A100_GB, 1)) == (0.65, 0.3) and 20 <= _WHOLE < 100),
        f"13e9 parameters of 2 bytes are {_WEIGHTS_GB} of {_A100_GB} GB; the {_KV_GB} GB of K/V that are printed are "
        f"{_KV_GB / _A100_GB:.0%}; in all {_A100_GB} GB {_WHOLE} requests of 2048 tokens would fit, at 1.6 GB each",
        _WEIGHTS_GB / _A100_GB,
    ),
    "GQA-memory": equal(
        _UNGROUPED / _GROUPED,
        8,
        0,
        f"Llama2-70B: {_GROUPED // 1024} KiB a token in place of {_UNGROUPED // 1024}: {_UNGROUPED / _GROUPED:g} times",
    ),
    "X-kernel": fixed(
        "not measured",
        "the bars of Figure 18a are not printed as numbers; another group reads some of them outside the text's range",
    ),
    "X-weights": fixed(
        held(_OPT175B_GB != 346), f"175e9 parameters of 2 bytes are {_OPT175B_GB} GB; Table 1 prints 346", _OPT175B_GB
    ),
}
