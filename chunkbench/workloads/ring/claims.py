"""Claims on attention over several ranks: RingAttention (arXiv 2310.01889), zigzag, tree attention (2408.04093)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from statistics import median

from chunkbench.bench.analysis.derive import Row
from chunkbench.bench.analysis.ratio import ratio
from chunkbench.bench.analysis.statistics import interval
from chunkbench.report.claims.evidence import Evidence, Judge, latency_ratio
from chunkbench.report.claims.judgement import ABOVE_1, Figure, Judgement, Stated, absent, decided, held, judged
from chunkbench.report.claims.judges import bounded, equal, fixed, largest
from chunkbench.report.printed import RingDevice, ring_devices
from chunkbench.workloads.ring.metrics import BLOCKS, METRICS, imbalance, most_sent
from chunkbench.workloads.ring.rates import Device, break_even, ideal_share
from chunkbench.workloads.ring.result import RingResult

_OURS = ("ring", "striped", "zigzag", "all_gather", "tree_decode")
_CONFIDENCE = 0.95
_INFINIBAND = "A100 InfiniBand"
_HIDDEN_SIZES = (9216, 12288)
"""Hidden sizes of models with about 170e9 parameters; the text does not say which model it means."""
_ALL_REDUCES = 3
"""Number of rounds of communication of a decode step with the tree. The ring has `ranks - 1` rounds."""
_BALANCE: Mapping[int, Stated] = {8: Stated("at least", 1.59, 2, most=1.64)}
"""Number of ranks -> stated gain of zigzag over the ring. On 8 GPUs, the ring reaches 51.4% of the ideal rate and
zigzag 81.7% (A100), or 52.1% and 85.2% (H800).
"""
_HELD = {"q": 1, "K and V": 2, "K and V that arrive": 2, "and the output": 1}
"""Tensors that a rank holds -> their size in blocks of bch elements (batch, tokens of the block, hidden size)."""


def exact(evidence: Evidence, stated: Stated) -> Judgement:
    """Errors against float64 over the tolerances, for every scheme that is ours."""
    cases = [(_facts(row), row) for group in _points(evidence) for name, row in group.items() if name in _OURS]
    found = [
        Figure.counted(facts.max_error / facts.tolerance, row)
        for facts, row in cases
        if facts.max_error is not None and facts.tolerance
    ]
    words = f"{{count}} cases of {', '.join(_OURS)}, each checked on sampled rows of every rank against float64"
    return bounded(found, stated, words, ("rings that were checked", "ring"), order=largest)


def memory(evidence: Evidence, stated: Stated) -> Judgement:
    """Peak memory of a rank, in blocks of the rank's tokens, at the longest prefill in float32."""
    rows = [row for _, row in _prefills(evidence, "ring") if _facts(row).dtype == "float32" and _blocks(row)]
    if not rows:
        return absent("the ring with peak memory", "ring")
    row = max(rows, key=lambda row: _facts(row).n_p)
    blocks, tokens = _blocks(row), _facts(row).n_p // _facts(row).ranks
    reason = f"{blocks:.2f} blocks of {tokens:,} tokens at the peak, inputs included"
    return decided(Figure.counted(blocks, row), stated, reason)


def overlap(evidence: Evidence, stated: Stated) -> Judgement:
    """Judges the share of the transfer time that the ring does not hide on a slow link.

    The claim says that computation hides transfers if blocks are larger than the break-even size. The share with blocks
    of at least twice this size is compared with the bound. With blocks of at most half of it, at least 40% must stay
    visible; otherwise something else hides transfers, and the claim does not hold.
    """
    found = []
    for _, row in _prefills(evidence, "ring", slow=True):
        facts = _facts(row)
        tokens, shares = break_even(facts), METRICS["exposed"].known(facts)
        if tokens and shares:
            low, high, _kind = interval(shares, _CONFIDENCE)
            found.append((facts.n_p / facts.ranks / tokens, Figure(median(shares), low, high, (row,))))
    above = min((pair for pair in found if pair[0] >= 2), key=lambda pair: pair[0], default=None)
    below = max((pair for pair in found if pair[0] <= 0.5), key=lambda pair: pair[0], default=None)
    if above is None or below is None:
        return absent("the ring on a slow link with blocks of twice and of half the predicted size", "ring")
    words = ", ".join(f"{figure.value:.1%} of the transfer exposed at {at:.2f} c*" for at, figure in (below, above))
    if below[1].high < 0.40:
        return judged("does not hold", f"{words}: below c* the prediction is wrong", [above[1], below[1]])
    return decided(above[1], stated, f"{words}; c* from probed rates", [below[1]])


def balance(evidence: Evidence) -> Judgement:
    """Time of the ring divided by that of the zigzag ring, with a causal mask. The reason also names the balance of
    work over ranks.

    If the text states no gain for this number of ranks, the ratio must be above 1. It must also be at most the work of
    the ring's busiest rank divided by the mean work.
    """
    prefills = [rows for rows, row in _prefills(evidence, "zigzag") if _facts(row).ranks > 1]
    ratios = [ratio for rows in prefills if (ratio := latency_ratio(rows, "ring", "zigzag"))]
    figure = max(ratios, key=lambda ratio: _facts(ratio.rows[0]).n_p, default=None)
    if figure is None:
        return absent("the ring and the zigzag ring at the same point", "ring")
    one, other = (_facts(row) for row in figure.rows)
    most, even = (imbalance(facts) or 0.0 for facts in (one, other))
    share = ideal_share(one.ranks)
    reason = (
        f"{figure.value:.2f}x at {one.n_p:,} tokens on {one.ranks} ranks; the busiest rank computes {most:.3f} of the "
        f"mean in the ring, {even:.3f} with zigzag; the ring can reach {share:.0%} of the ideal speed-up"
    )
    return decided(figure, _BALANCE.get(one.ranks) or replace(ABOVE_1, most=most), reason)


def table2() -> Judgement:
    """Compare the sizes of blocks and sequences in Table 2 with F / B and 6 F / B, for F FLOP/s and B bytes/s. The
    sizes are in thousands of tokens, with one decimal. The row of claim `X-ring2` is left out.
    """
    wrong, count = [], 0
    for row in ring_devices():
        if row.name == _INFINIBAND:
            continue
        block = _block(row)
        for what, computed, printed in (("block", block, row.block), ("sequence", BLOCKS * block, row.sequence)):
            count += 1
            if abs(computed / 1e3 - printed) > 0.05 + 1e-9:
                wrong.append(f"{what} of {row.name}: {computed:,.0f}, not {1e3 * printed:,.0f}")
    reason = "; ".join([f"{count - len(wrong)} of {count} printed figures are F / B and 6 F / B", *wrong])
    return Judgement(held(not wrong), reason, float(count - len(wrong)))


def table2_disagrees() -> Judgement:
    (row,) = (row for row in ring_devices() if row.name == _INFINIBAND)
    block = _block(row)
    reason = f"{row.tflops:g} TFLOPS / {row.gb_per_s:g} GB/s = {block:,.0f} tokens, six of them {BLOCKS * block:,.0f}; "
    reason += f"Table 2 prints {1e3 * row.block:,.0f} and {1e3 * row.sequence:,.0f}; its other four rows agree"
    return Judgement(held(abs(block / 1e3 - row.block) > 0.05), reason, block)


def appendix_d() -> Judgement:
    """Ratio that the formula of Appendix D gives for contexts of 10M tokens over 4K tokens. The interval spans all
    `_HIDDEN_SIZES`, with 10M and 4K read as powers of ten and of two.
    """
    lengths = ((4_000, 10_000_000), (4_096, 10 * 2**20))
    ratios = [(6 * h + after) / (6 * h + before) for h in _HIDDEN_SIZES for before, after in lengths]
    figure = Figure.of_repeats(ratios, ())
    reason = f"the formula gives {figure.low:.1f} to {figure.high:.1f} for hidden sizes of {_HIDDEN_SIZES[0]:,} to "
    reason += f"{_HIDDEN_SIZES[1]:,}; 162.6 needs a hidden size of about 9,900, and we know no such model"
    return replace(decided(figure, Stated("at least", 162.6, 1, most=162.6), reason), measured=None)


def tree(evidence: Evidence, stated: Stated) -> Judgement:
    """Gains of the tree over the ring in a decode step. One gain is the ratio of the bytes that a rank sends. The other
    gain is the ratio of the rounds of communication. The smaller gain decides.
    """
    found = []
    for group in _points(evidence):
        rows = [row for name in ("ring", "tree_decode") if (row := group.get(name)) and row.derived.latency_us]
        sent = [most_sent(_facts(row)) for row in rows]
        if len(sent) == 2 and sent[0] and sent[1]:
            found.append((sent[0], sent[1], rows))
    if not found:
        return absent("the tree and the ring in decoding", "ring")
    ring, merged, rows = max(found, key=lambda sent: sent[0])
    facts = _facts(rows[0])
    time = ratio(rows[0].facts, rows[1].facts, _CONFIDENCE)
    rotations = facts.ranks - 1
    gains = [Figure.counted(gain, *rows) for gain in (ring / merged, rotations / _ALL_REDUCES)]
    reason = f"{ring / 1e6:.1f} MB against {merged / 1e6:.2f} MB at {facts.n_p:,} tokens and {facts.batch_size} "
    reason += f"sequences on {facts.ranks} ranks, {ring / merged:.0f} times less; rounds: {_ALL_REDUCES} all-reduces "
    reason += f"against {rotations} of the ring, so the tree has fewer from {_ALL_REDUCES + 2} ranks on"
    reason += f"; the ring takes {time.value:.2f}x the time" if time else ""
    worst, *others = stated.worst_first(gains)
    return decided(worst, stated, reason, others)


def _points(evidence: Evidence) -> Iterator[Mapping[str, Row]]:
    """Scheme -> row, for each point of a ring experiment."""
    for group in evidence.groups:
        if any(isinstance(row.facts, RingResult) for row in group.rows.values()):
            yield group.rows


def _prefills(evidence: Evidence, name: str, slow: bool = False) -> Iterator[tuple[Mapping[str, Row], Row]]:
    """(rows of a point, row of this scheme) for each prefill where the scheme was measured. `slow`: only points with a
    slow link.
    """
    for rows in _points(evidence):
        row = rows.get(name)
        if row is None or row.derived.latency_us is None:
            continue
        facts = _facts(row)
        if facts.phase == "prefill" and (facts.link is not None) == slow:
            yield rows, row


def _facts(row: Row) -> RingResult:
    assert isinstance(row.facts, RingResult)
    return row.facts


def _blocks(row: Row) -> float:
    """Peak memory of a rank in blocks of its tokens; 0 if unknown."""
    return BLOCKS * (METRICS["of_six_blocks"].value(row.facts) or 0.0)


def _block(row: RingDevice) -> float:
    return Device.of_rates(row.name, row.tflops, row.gb_per_s).break_even()


JUDGES: Mapping[str, Judge] = {
    "RG-exact": partial(exact, stated=Stated("at most", 1.0, 2)),
    "RG-memory": partial(memory, stated=Stated("at most", BLOCKS, 0)),
    "RG-overlap": partial(overlap, stated=Stated("at most", 0.10, 2)),
    "RG-balance": balance,
    "RG-table1": equal(
        sum(_HELD.values()),
        BLOCKS,
        0,
        f"{', '.join(_HELD)} are {sum(_HELD.values())}bch elements. That is less than the 2bsh elements of blockwise "
        "transformers if s > 3c, so from 4 ranks on",
    ),
    "RG-table2": lambda _: table2(),
    "RG-appendixD": lambda _: appendix_d(),
    "RG-tree": partial(tree, stated=ABOVE_1),
    "RG-context": fixed(
        "not measured", "it needs several GPUs with memories of their own; ranks on one machine share its memory"
    ),
    "X-ring2": lambda _: table2_disagrees(),
}
