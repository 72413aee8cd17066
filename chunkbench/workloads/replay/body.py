"""The report of replays: latencies, memory by kind, hits and what was computed, beside the paper's Table 4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import geometric_mean

from chunkbench.analysis.derive import Group, Row
from chunkbench.analysis.replay import ReplayNumbers, replay_numbers
from chunkbench.analysis.serving import SustainedRate, shares_one_prefix, sustained_rate
from chunkbench.paper.printed import table4
from chunkbench.report.model import Cell, Table
from chunkbench.report.numbers import NOTHING, count, extent, ms_of_s, percent, significant, times
from chunkbench.report.quantities import Quantity, figure, normalized_latency, paper, quantities
from chunkbench.report.rates import PAPER_OBJECTIVE_S, paper_rates, rate_cell, rates_table
from chunkbench.report.view import Body, Line, View
from chunkbench.store.replay_result import ForkFacts, ReplayResult

_OPTIMUM = "belady"
SYSTEMS = {"paged": "vllm", "prefix_tree": "chunk_llama"}
"""Manager -> the system of the paper's Table 4 that has it."""
_LEGEND = (
    "a replay: requests, a scheduler and a cache manager on a virtual clock; nothing was measured",
    "normalized latency = (last token - due) / tokens, mean over requests, median over arrival seeds",
    "used, reserved, lost: shares of the memory that sequences have taken, mean over time. used: holds tokens; "
    "reserved: will hold tokens later; internal fragmentation: allocated, but no token will come; external: in gaps",
    "saved by sharing: slots that sequences would need by themselves and do not, over their tokens",
    "cached: prompt tokens that a request found when it was first admitted; computed, over the least: prompt tokens "
    "computed, preempted ones again, over the different tokens of all prompts",
)
_OF_OPTIMUM = (
    "cached, of the optimum: over what belady caches, which knows all requests; no other choice of the blocks that "
    "leave caches more. Trees have chunks of their own size"
)
_FORKS = (
    "requests one at a time, each with several answers behind one prompt. Beam search: after each token, each place "
    "continues a beam that is drawn at equal chances; real beams follow the model's scores, which no trace has"
)


def body(view: View) -> Body:
    """Headline, tables and legend of a run."""
    forked = [group for group in view.groups if group.axes["samples"] or group.axes["beams"]]
    timed = view.only([group for group in view.groups if group not in forked])
    tables = (
        *_sustained(timed),
        _latency(timed),
        _memory(timed),
        _computed(timed),
        _shared_by_forks(view.only(forked)),
    )
    return Body(
        _headline(view),
        tables,
        legend=(*_LEGEND, *([_OF_OPTIMUM] if _OPTIMUM in view.columns.ids else []), *([_FORKS] if forked else [])),
        timing=_timing(view),
    )


def _sustained(view: View) -> list[Table]:
    """The paper's Figure 5 in numbers, where prompts of one length share one prefix at several rates."""
    known = [group for group in view.groups if group.axes["n_p"] and group.axes["rate"]]
    points = [group for group in known if shares_one_prefix(group.axes)]
    blocks = []
    for n_p, n_s in sorted({(group.axes["n_p"], group.axes["n_s"]) for group in points}):
        groups = [group for group in points if (group.axes["n_p"], group.axes["n_s"]) == (n_p, n_s)]
        if len(groups) < 2:
            continue
        names = view.columns.ids
        stated = paper_rates(n_p) if n_s == n_p else {}
        printed_rates = {name: stated.get(SYSTEMS.get(name, "")) for name in names}
        texts = {name: NOTHING if rate is None else significant(rate, 3) for name, rate in printed_rates.items()}
        lines = [Line("requests per second", {name: rate_cell(_sustained_rate(groups, name)) for name in names})]
        if stated:
            lines.append(Line("  the same, paper (measured)", {name: Cell(texts[name], "quiet") for name in names}))
        blocks.append(((str(n_p), str(n_s)), lines))
    title = f"Rates sustained below {PAPER_OBJECTIVE_S * 1e3:.0f} ms/token in the replay"
    return rates_table(view, title, (("n_p",), ("n_s",)), blocks)


def _sustained_rate(groups: Sequence[Group], name: str) -> SustainedRate | None:
    rows = [(group.axes["rate"] / 60, group.rows[name].derived.latency_us) for group in groups if name in group.rows]
    return sustained_rate([(rate, us / 1e6) for rate, us in rows if us is not None], PAPER_OBJECTIVE_S)


def _latency(view: View) -> Table:
    latency, seeds, ratio = normalized_latency(view.columns.name(view.baseline))
    lines: list[Quantity] = [
        latency,
        seeds,
        _printed("normalized_latency_ms_per_token"),
        ratio,
        ("first token, ms: median", _number(lambda n: ms_of_s(n.first_token_s[0]) if n.first_token_s else NOTHING)),
        ("  99th percentile", _number(lambda n: ms_of_s(n.first_token_s[2]) if n.first_token_s else NOTHING)),
        ("requests that never fit", _number(lambda n: str(n.refused) if n.refused else NOTHING)),
    ]
    return quantities(view, "Replayed latency", lines)


def _memory(view: View) -> Table:
    lines: list[Quantity] = [
        ("peak K/V, GB", lambda _, row: Cell(_gigabytes(row))),
        _printed("peak_kv_cache_gb"),
        ("peak batch", _number(lambda n: str(n.peak_batch))),
        _printed("peak_batch_size"),
        ("memory that is used", _number(lambda n: percent(n.memory.used) if n.memory else NOTHING)),
        ("  reserved", _number(lambda n: percent(n.memory.reserved) if n.memory else NOTHING)),
        (
            "  internal fragmentation",
            _number(lambda n: percent(n.memory.internal_fragmentation) if n.memory else NOTHING),
        ),
        (
            "  external fragmentation",
            _number(lambda n: percent(n.memory.external_fragmentation) if n.memory else NOTHING),
        ),
        ("saved by sharing", _number(lambda n: percent(n.saved))),
    ]
    return quantities(view, "Memory in the replay", lines)


def _computed(view: View) -> Table:
    lines: list[Quantity] = [
        ("cached prompt tokens", _number(lambda n: percent(n.hit_share))),
        ("  cached, of the optimum", figure(_of_optimum, percent)),
        ("computed, over the least", _number(lambda n: times(n.over_bound))),
        ("preemptions", _number(lambda n: f"{n.preemptions:,.0f}")),
        ("evicted blocks", _number(lambda n: f"{n.evicted_blocks:,.0f}")),
    ]
    return quantities(view, "What was cached and computed in the replay", lines)


def _of_optimum(group: Group, row: Row) -> float | None:
    """Cached prompt tokens over the optimum's at the same point; None where it has none."""
    numbers, optimum = replay_numbers(row), group.rows.get(_OPTIMUM)
    best = replay_numbers(optimum) if optimum is not None else None
    return numbers.hit_share / best.hit_share if numbers and best and best.hit_share else None


def _shared_by_forks(view: View) -> Table:
    lines: list[Quantity] = [
        ("saved by sharing", figure(_forks, lambda forks: percent(forks.saved))),
        ("prompts, of what is held", figure(_forks, lambda forks: percent(forks.prompt_share))),
    ]
    title = "What the answers of one request share"
    return quantities(view, title, lines, lambda row: forks_of(row) is not None)


def _forks(_: Group, row: Row) -> ForkFacts | None:
    return forks_of(row)


def forks_of(row: Row) -> ForkFacts | None:
    """What the answers of one request shared; None if the case had no such requests."""
    return row.facts.forks if isinstance(row.facts, ReplayResult) else None


def _number(text: Callable[[ReplayNumbers], str]) -> Callable[[Group, Row], Cell]:
    return figure(lambda _, row: replay_numbers(row), text)


def _printed(column: str) -> Quantity:
    return "  the same, paper (measured)", paper(lambda group, row: printed(group, row, column))


def printed(group: Group, row: Row, column: str) -> str | None:
    """What the paper's Table 4 prints for the system with this manager at this point; None if it has no such row."""
    axes = group.axes
    known = table4().get((axes["n_p"], axes["n_s"], SYSTEMS.get(row.facts.implementation, "")))
    if known is None or axes["rate"] is None or axes["batch_size"] != 32:
        return None
    same = axes["n_c"] == int(known["n_c"]) and axes["rate"] / 60 == float(known["rps"])
    return known[column] if same else None


def _gigabytes(row: Row) -> str:
    numbers, facts = replay_numbers(row), row.facts
    if numbers is None or not isinstance(facts, ReplayResult):
        return NOTHING
    return significant(numbers.peak_slots * facts.token_bytes / 1e9, 3)


def _headline(view: View) -> str:
    parts = []
    for name in view.columns.ids:
        if name == view.baseline:
            continue
        ratios = [
            row.derived.ratio_to_baseline
            for group in view.groups
            if (row := group.rows.get(name)) is not None and row.derived.ratio_to_baseline is not None
        ]
        if ratios:
            parts.append(f"{view.columns.name(name)} {times(geometric_mean(ratios))}")
    base = view.columns.name(view.baseline)
    if not parts:
        return ""
    return f"Replayed normalized latency over {base}'s, geometric mean over points: {'; '.join(parts)}."


def _timing(view: View) -> str:
    facts = [row.facts for group in view.groups for row in group.rows.values() if isinstance(row.facts, ReplayResult)]
    replays = [fact for fact in facts if fact.replays]
    if not replays:
        return "nothing was timed"
    seeds = max(len(fact.replays) for fact in replays)
    requests = extent(seed.requests for fact in replays for seed in fact.replays)
    models: dict[str, list[str]] = {}
    for fact in replays:
        models.setdefault(fact.step_time, []).append(fact.label)
    named = [f"step times of {', '.join(dict.fromkeys(labels))}: {words}" for words, labels in models.items()]
    return "; ".join(
        [
            f"replayed on a virtual clock, not measured: {count(seeds, 'arrival seed')} of {requests} requests",
            *(named if len(models) > 1 else [f"step times: {words}" for words in models]),
        ]
    )
