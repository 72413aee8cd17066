"""Claims on Table 1: the costs of a decoder layer, which follow from the shapes, and the share of attention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from chunkbench.bench.analysis.derive import Row
from chunkbench.llama import SHAPES
from chunkbench.report.claims.evidence import Evidence, Judge
from chunkbench.report.claims.judgement import Figure, Judgement, Stated, absent, held, listed
from chunkbench.report.claims.judges import each_reached
from chunkbench.report.printed import paper_rows
from chunkbench.workloads.modules.layer_costs import FIGURES, MODULES


def table1() -> Judgement:
    """Llama2-7B, 2048 tokens, 16-bit numbers; the paper prints two decimals."""
    shape = SHAPES["llama2-7b"]
    wrong, count = [], 0
    for row in paper_rows("table1"):
        metric, batch_size = row["metric"], int(row["batch_size"])
        if metric not in FIGURES:
            continue
        for module, cost in MODULES.items():
            computed = f"{FIGURES[metric](cost(shape, batch_size, 2048)):.2f}"
            count += 1
            if computed != row[module]:
                wrong.append(f"{metric} of {module} at b = {batch_size}: {computed}, not {row[module]}")
    reason = "; ".join([f"{count - len(wrong)} of {count} printed figures follow from the shapes", *wrong])
    return Judgement(held(not wrong), reason, float(count - len(wrong)))


def attention(evidence: Evidence) -> Judgement:
    """Share of self-attention in the time of the three modules. It has to reach the printed share at each batch size
    above 1. A lower share has an explanation if the share grows with the batch size: relative to reading, products take
    longer here than on the paper's GPU.
    """
    printed = {row["batch_size"]: row for row in paper_rows("table1") if row["metric"] == "latency"}
    found = {}
    for point in evidence.last(lambda group: group if group.rows.keys() >= MODULES.keys() else None):
        paper = printed.get(str(point.axes["batch_size"]))
        if paper and point.axes["n_p"] == 2048 and all(row.derived.latency_us for row in point.rows.values()):
            stated = float(paper[_ATTENTION]) / sum(float(paper[module]) for module in MODULES)
            found[point.axes["batch_size"]] = _share(point.rows, stated), Stated("at least", round(stated, 2), 2)
    decisive = [entry for batch_size, entry in found.items() if batch_size > 1]
    if not decisive:
        return absent("the times of the three modules with 32 and with 64 sequences", "table1")
    words = listed((figure for figure, _ in found.values()), "{:.0%}")
    (fewest, _), (most, _) = found[min(found)], found[max(found)]
    cause = "it grows with the batch, but products take longer here, beside reading, than on the paper's A100"
    return each_reached(decisive, words, cause if most.low > fewest.high else "")


_ATTENTION = "self_attention"


def _share(rows: Mapping[str, Row], printed: float) -> Figure:
    """Self-attention's share, with the range that the intervals of all three modules allow."""
    others = [rows[module].derived for module in MODULES if module != _ATTENTION]
    own = rows[_ATTENTION].derived

    def share(attention: float | None, rest: Iterable[float | None]) -> float:
        return (attention or 0.0) / ((attention or 0.0) + sum(us or 0.0 for us in rest))

    return Figure(
        share(own.latency_us, (other.latency_us for other in others)),
        share(own.low_us, (other.high_us for other in others)),
        share(own.high_us, (other.low_us for other in others)),
        tuple(rows[module] for module in MODULES),
        f"with {rows[_ATTENTION].facts.batch_size} (printed: {printed:.0%})",
    )


JUDGES: Mapping[str, Judge] = {"T1-arith": lambda _: table1(), "T1-attention": attention}
