"""Every quantitative claim of the source texts, judged by the measured rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from chunkbench.analysis.derive import Row
from chunkbench.paper.claims import (
    analytic,
    constrained,
    decode,
    kv_memory,
    managers,
    paged,
    prefill,
    razor,
    ring,
    serving,
    trees,
)
from chunkbench.paper.claims.evidence import Evidence, RunRows
from chunkbench.paper.claims.judgement import Bound, ClaimVerdict, Judgement
from chunkbench.paper.printed import paper_rows

__all__ = ["Claim", "ClaimVerdict", "claims", "differing"]

_JUDGES: Mapping[str, Callable[[Evidence], Judgement]] = {
    "T1-arith": lambda _: analytic.table1(),
    "S1-gpt3-kv": lambda _: analytic.gpt3_token(),
    "S1-capacity": lambda _: analytic.gpt3_capacity(),
    "S3-waste": kv_memory.waste,
    "S3-sharing": kv_memory.sharing,
    "S3-contiguity": lambda _: kv_memory.contiguity(),
    "T3-star": decode.star,
    "T3-naive": decode.naive,
    "T3-hwcache": decode.hardware_cache,
    "T3-noregress": decode.no_regression,
    "T3-agnostic": decode.agnostic,
    "ABS-speedup": decode.abstract,
    "F3-512": partial(decode.figure3, n_c=512, over_paged=3.6, over_star=2.0),
    "F3-2048": partial(decode.figure3, n_c=2048, over_paged=2.3, over_star=1.5),
    "F3-decay": decode.decay,
    "F4-peak": decode.figure4_peak,
    "F4-growth": decode.figure4_growth,
    "F5-1024": partial(serving.sustained, n_p=1024, paper=1.6),
    "F5-2048": partial(serving.sustained, n_p=2048, paper=2.3),
    "T4-kv": serving.kv_memory,
    "T4-batch": serving.batch,
    "T4-noregress": serving.no_regression,
    "PA-kv13b": lambda _: analytic.opt13b_token(),
    "PA-throughput": paged.throughput,
    "PA-static": lambda _: paged.static_batching(),
    "PA-batch": lambda _: paged.batch(),
    "PA-batches": paged.batches,
    "PA-waste": partial(paged.waste, kind="used"),
    "PA-reserved": partial(paged.waste, kind="reserved"),
    "PA-internal": partial(paged.waste, kind="internal_fragmentation"),
    "PA-external": partial(paged.waste, kind="external_fragmentation"),
    "PA-used": partial(paged.waste, kind="used", manager="paged"),
    "PA-parallel": paged.parallel,
    "PA-samples2": partial(paged.saved, samples=2),
    "PA-samples4": partial(paged.saved, samples=4),
    "PA-samples6": partial(paged.saved, samples=6),
    "PA-beams2": partial(paged.saved, beams=2),
    "PA-beams4": partial(paged.saved, beams=4),
    "PA-beams6": partial(paged.saved, beams=6),
    "PA-answers": paged.answers,
    "PA-prefix80": partial(paged.prefix, n_s=80),
    "PA-prefix341": partial(paged.prefix, n_s=341),
    "PA-chat": paged.chat,
    "PA-kernel": paged.kernel,
    "PA-block": paged.block,
    "PA-recompute": paged.recompute,
    "GQA-memory": lambda _: paged.grouped_heads(),
    "RA-bound": prefill.bound,
    "RA-hit": prefill.hit_rate,
    "RA-bookkeeping": serving.bookkeeping,
    "RA-optimum": managers.hits_of_optimum,
    "MC-hits": managers.mooncake,
    "FSM-throughput": constrained.throughput,
    "FSM-retokenize": constrained.retokenize,
    "FSM-preprocess": constrained.preprocess,
    "FSM-faster-than-free": constrained.faster_than_free,
    "FSM-same": constrained.same,
    "RZ-bytes": razor.saved_bytes,
    "RZ-heads": razor.heads,
    "RZ-compensation": razor.compensation,
    "RZ-echo": razor.echo,
    "RZ-throughput": razor.throughput,
    "RZ-prefix": razor.prefix,
    "RG-exact": ring.exact,
    "RG-memory": ring.memory,
    "RG-overlap": ring.overlap,
    "RG-balance": ring.balance,
    "RG-table1": lambda _: ring.table1(),
    "RG-table2": lambda _: ring.table2(),
    "RG-appendixD": lambda _: ring.appendix_d(),
    "RG-tree": ring.tree,
    "RG-context": lambda _: ring.context(),
    "FT-flat": partial(trees.fasttree, slow=trees.FLAT, against="flashinfer"),
    "FT-cascade": partial(trees.fasttree, slow=trees.NODE_WISE, against="cascade"),
    "FT-greedy": trees.greedy,
    "PAT-flat": partial(trees.pat, slow=trees.FLAT, against="flashinfer"),
    "PAT-cascade": partial(trees.pat, slow=trees.NODE_WISE, against="cascade", one_root=True),
    "PAT-naive": trees.pat_naive,
    "PAT-no-sharing": trees.pat_no_sharing,
    "DF-node": trees.deft_node,
    "DF-speedup": lambda _: trees.needs_gpu("no plan here cuts K and V evenly across nodes, as DeFT-Flatten does"),
    "TRT-cascade": trees.tensorrt,
    "FI-595": trees.issue595,
    "FI-31x": lambda _: trees.needs_gpu("the figure is a GPU kernel's over vLLM's of 2024"),
    "X-ring2": lambda _: ring.table2_disagrees(),
    "X-figure4": lambda _: analytic.figure4_disagrees(),
    "X-kernel": lambda _: paged.kernel_disagrees(),
    "X-swapping": lambda _: paged.swapping_disagrees(),
    "X-weights": lambda _: paged.weights_disagree(),
    "X-alpaca": lambda _: paged.alpaca_batch(),
    "X-unit": lambda _: analytic.unit_of_table3(),
}

_EXPERIMENT = {"T3": "table3", "ABS": "table3", "F3": "figure3", "F4": "figure4"}
"""First part of a claim's id -> the experiment that measures this claim. Other experiments may share its points."""


@dataclass(frozen=True)
class Claim:
    """A statement of a source text, and the verdict on it."""

    id: str
    source: str
    statement: str
    quantity: str
    """The figure that decides, in a few words."""
    unit: str
    """x: a ratio; %: a share, as a fraction; else the word that follows the figure."""
    verdict: ClaimVerdict
    measured: float | None
    low: float | None
    high: float | None
    paper: str
    """What the text says of this figure, with unit and direction."""
    reason: str
    rows: tuple[str, ...]
    """Keys of the cases that the verdict rests on."""
    bound: Bound

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "rows": list(self.rows)}


def differing(runs: Mapping[str, Sequence[Row]]) -> dict[str, dict[str, ClaimVerdict]]:
    """Claim -> run -> verdict, of the claims on which single runs of one machine differ."""
    by_machine: dict[str, list[str]] = {}
    for name, rows in runs.items():
        machines = {row.facts.machine for row in rows}
        if len(machines) == 1:
            by_machine.setdefault(machines.pop(), []).append(name)
    found: dict[str, dict[str, ClaimVerdict]] = {}
    for names in by_machine.values():
        if len(names) == 1:  # it differs from nothing
            continue
        for same in zip(*(claims([runs[name]]) for name in names), strict=True):
            verdicts = {name: claim.verdict for name, claim in zip(names, same, strict=True)}
            verdicts = {name: verdict for name, verdict in verdicts.items() if verdict != "not measured"}
            if len(set(verdicts.values())) > 1:
                found[same[0].id] = verdicts
    return found


def claims(runs: Sequence[Sequence[Row]]) -> list[Claim]:
    """Every claim of `results/paper/claims.csv`, in the order of the file, judged by the rows of these runs."""
    evidence = Evidence([RunRows(rows) for rows in runs])
    stated: Sequence[dict[str, Any]] = paper_rows("claims")
    preferred = {name: evidence.preferring(experiment) for name, experiment in _EXPERIMENT.items()}
    return [
        Claim(**row, **vars(_JUDGES[row["id"]](preferred.get(row["id"].split("-")[0], evidence)))) for row in stated
    ]
