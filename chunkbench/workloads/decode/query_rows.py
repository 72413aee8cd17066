"""The report of points with several query rows of a sequence: their time over that of one row and over the machine's
limit, and the claims on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from statistics import median

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.bench.store.results import DecodeResult
from chunkbench.draft import CHAIN
from chunkbench.report.claims.evidence import Evidence, Judge
from chunkbench.report.claims.judgement import Figure, Judgement, Stated
from chunkbench.report.claims.judges import bounded
from chunkbench.report.model import Cell
from chunkbench.report.numbers import NOTHING, times
from chunkbench.report.view import Body, View
from chunkbench.workloads.decode import tables

_OURS = "chunk_attn"


def facts_of(group: Group) -> DecodeResult | None:
    """The facts of one of the rows of a point, or None if the point is of another kind."""
    facts = next(iter(group.rows.values())).facts
    return facts if isinstance(facts, DecodeResult) else None


def single_rows(groups: Iterable[Group]) -> Mapping[int, Group]:
    """`id` of a point -> the point that has one query row and is the same otherwise."""
    members = [(group, facts) for group in groups if (facts := facts_of(group)) is not None]
    same = {id(group): repr(_others(group)) for group, _ in members}
    single = {same[id(group)]: group for group, facts in members if facts.query_rows == 1}
    return {id(group): single[same[id(group)]] for group, _ in members if same[id(group)] in single}


def _others(group: Group) -> dict[str, object]:
    return {name: value for name, value in group.axes.items() if name not in ("query_rows", "draft")}


def over_single(group: Group, singles: Mapping[int, Group], name: str) -> float | None:
    """Latency of an implementation at a point over that with one query row."""
    one = singles.get(id(group))
    latencies = [each.rows[name].derived.latency_us for each in (group, one) if each is not None and name in each.rows]
    return latencies[0] / latencies[1] if len(latencies) == 2 and latencies[0] and latencies[1] else None


def over_limit(row: Row) -> float | None:
    """Latency over the time that the bytes need at the probed bandwidth, or the FLOPs at the rate of the kernels'
    instruction set, whichever is longer; the bytes count what is shared once."""
    case = row.timed
    if case is None or row.derived.latency_us is None or not case.peaks or not case.unique_bytes or not case.flops:
        return None
    bytes_per_s = median(peak.read_bytes_per_s for peak in case.peaks)
    flops_per_s = median(peak.matrix_native_flops_per_s or peak.matrix_flops_per_s for peak in case.peaks)
    limits = [
        max(moved / bytes_per_s, flops / flops_per_s)
        for moved, flops in zip(case.unique_bytes, case.flops, strict=True)
    ]
    return row.derived.latency_us / (1e6 * sum(limits) / len(limits))


_LEGEND = (
    "over one row: latency over that of the point with one query row that is the same otherwise; points are measured "
    "one after the other, so the machine's speed may differ between them",
    "over the limit: latency over max(bytes / B, FLOPs / F); B and F are the medians of what the rounds probed, F with "
    "the kernels' own instruction set",
    "draft: a chain, or the tokens of each level of a tree; a row reads the context, its ancestors and itself",
)


def body(view: View) -> Body:
    singles = single_rows(view.groups)

    def ratio(group: Group, row: Row | None) -> Cell:
        facts = facts_of(group)
        if row is None or facts is None or facts.query_rows == 1:
            return Cell(NOTHING)
        found = over_single(group, singles, row.facts.implementation)
        return Cell(NOTHING if found is None else times(found))

    def limit(_: Group, row: Row | None) -> Cell:
        found = None if row is None else over_limit(row)
        return Cell(NOTHING if found is None else times(found))

    own = (
        view.by_implementation("Latency over that of one query row", ratio),
        view.by_implementation("Latency over the limit of memory and arithmetic", limit),
        tables.latency_table(view),
        tables.ratio_table(view),
        tables.detail_table(view),
    )
    return Body(_headline(view, singles), tuple(table for table in own if table is not None), legend=_LEGEND)


def _headline(view: View, singles: Mapping[int, Group]) -> str:
    found = []
    for group in view.groups:
        facts, value = facts_of(group), over_single(group, singles, view.baseline)
        if facts is not None and value is not None and facts.query_rows > 1 and facts.draft == CHAIN:
            found.append((value / facts.query_rows, value, facts))
    if not found:
        return "No point was measured with one query row and with several."
    _, value, facts = min(found, key=lambda each: each[0])
    return (
        f"With {view.columns.name(view.baseline)}, {facts.query_rows} query rows of each sequence take {times(value)} "
        "the time of one: the least for each row."
    )


def _claim(evidence: Evidence, name: str, rows: int, stated: Stated, cause: str) -> Judgement:
    """Latency with this number of query rows over that with one, where nothing is shared."""
    found = []
    for run in evidence.runs:
        singles = single_rows(run.groups)
        for group in run.groups:
            facts, value = facts_of(group), over_single(group, singles, name)
            if facts is None or value is None or (facts.query_rows, facts.draft, facts.n_s) != (rows, CHAIN, 0):
                continue
            of = group.rows[name], singles[id(group)].rows[name]
            place = f"with {facts.n_p} tokens, batch {facts.batch_size}, {facts.kv_heads} KV heads"
            found.append(Figure.counted(value, *of, place=place))
    label = {"vllm_paged_attn": "vLLM's kernel for CPUs", _OURS: "ChunkAttn"}[name]
    words = f"{rows} query rows take {{it:.2f}} times the time of one row in {label} {{where}}, of {{count}} points"
    return bounded(found, stated, words, (f"{label} with 1 and {rows} query rows", "query-rows"), cause=cause)


JUDGES: Mapping[str, Judge] = {
    "SD-loads": partial(
        _claim,
        name="vllm_paged_attn",
        rows=17,
        stated=Stated("at least", 17, 0),
        cause="the issue profiled EAGLE on a GPU; vLLM's kernel for CPUs reads the context once for all rows",
    ),
    "SD-openvino": partial(
        _claim,
        name=_OURS,
        rows=3,
        stated=Stated("at least", 7, 0),
        cause="the issue measured OpenVINO's operator; its slope is of the time over the context, here it is the time "
        "of our kernel",
    ),
}
