"""The report of replays: latencies, memory by kind, hits and what was computed, beside the paper's Table 4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import geometric_mean

from chunkbench.analysis.derive import Row
from chunkbench.analysis.replay import ReplayNumbers, replay_numbers
from chunkbench.analysis.serving import SustainedRate, shares_one_prefix, sustained_rate
from chunkbench.paper.printed import paper_rows
from chunkbench.report.line_table import Line, line_table
from chunkbench.report.model import Cell, Column, Emphasis, Group, Table
from chunkbench.report.numbers import NOTHING, count, percent, significant, times
from chunkbench.report.rates import PAPER_OBJECTIVE_S, paper_rates, rate_words
from chunkbench.report.view import Body, View
from chunkbench.store.replay_facts import ReplayFacts

SYSTEMS = {"paged": "vllm", "prefix_tree": "chunk_llama"}
"""Manager -> the system of the paper's Table 4 that has it."""
_LEGEND = (
    "a replay: requests, a scheduler and a cache manager on a virtual clock; nothing was measured",
    "normalized latency = (last token - due) / tokens, mean over requests, median over arrival seeds",
    "used, reserved, lost: shares of the memory that sequences have taken, mean over time. used: holds tokens; "
    "reserved: will hold tokens later; lost inside: allocated, but no token will come; lost between: in gaps",
    "saved by sharing: slots that sequences would need by themselves and do not, over their tokens",
    "cached: prompt tokens that a request found when it was first admitted; computed, over the least: prompt tokens "
    "computed, preempted ones again, over the different tokens of all prompts",
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
        tuple(table for table in tables if table.rows),
        legend=(*_LEGEND, *([_FORKS] if forked else [])),
        timing=_timing(view),
    )


def _sustained(view: View) -> list[Table]:
    """The paper's Figure 5 in numbers, where prompts of one length share one prefix at several rates."""
    known = [group for group in view.groups if group.axes["n_p"] and group.axes["rate"]]
    lines = [group for group in known if shares_one_prefix(group.axes)]
    rows: list[tuple[Cell, ...]] = []
    for n_p, n_s in sorted({(group.axes["n_p"], group.axes["n_s"]) for group in lines}):
        groups = [group for group in lines if (group.axes["n_p"], group.axes["n_s"]) == (n_p, n_s)]
        if len(groups) < 2:
            continue
        rates = {name: _sustained_rate(groups, name) for name in view.columns.ids}
        stated = paper_rates(n_p) if n_s == n_p else {}
        found = (Cell(rate_words(rate)) for rate in rates.values())
        rows.append((Cell(str(n_p)), Cell(str(n_s)), Cell("requests per second"), *found))
        if stated:
            printed_rates = [stated.get(SYSTEMS.get(name, "")) for name in rates]
            texts = [NOTHING if rate is None else significant(rate, 3) for rate in printed_rates]
            quiet = (Cell(text, "quiet") for text in texts)
            rows.append((Cell(""), Cell(""), Cell("  the same, paper (measured)"), *quiet))
    columns = (
        Column("n_p", ("n_p",)),
        Column("n_s", ("n_s",)),
        Column("", ("",), "left"),
        *(view.columns.column(name) for name in view.columns.ids),
    )
    title = f"Rates sustained below {PAPER_OBJECTIVE_S * 1e3:.0f} ms/token in the replay"
    return [Table(title, columns, tuple(rows), 3)] if rows else []


def _sustained_rate(groups: Sequence[Group], name: str) -> SustainedRate | None:
    rows = [(group.axes["rate"] / 60, group.rows[name].derived.latency_us) for group in groups if name in group.rows]
    return sustained_rate([(rate, us / 1e6) for rate, us in rows if us is not None], PAPER_OBJECTIVE_S)


def _latency(view: View) -> Table:
    lines: list[Line] = [
        ("normalized latency, ms/token", lambda group, row: Cell(_ms(row.derived.latency_us), _best(group, row))),
        ("  smallest and largest seed", lambda _, row: Cell(_seeds(row), "quiet")),
        (
            "  the same, paper (measured)",
            lambda group, row: Cell(printed(group, row, "normalized_latency_ms_per_token") or NOTHING, "quiet"),
        ),
        (f"  over {view.columns.name(view.baseline)}", lambda _, row: Cell(times(row.derived.ratio_to_baseline))),
        ("first token, ms: median", _number(lambda n: _seconds(n, 0))),
        ("  99th percentile", _number(lambda n: _seconds(n, 2))),
        ("requests that never fit", _number(lambda n: str(n.refused) if n.refused else NOTHING)),
    ]
    return line_table(view, "Replayed latency", lines)


def _memory(view: View) -> Table:
    lines: list[Line] = [
        ("peak K/V, GB", lambda _, row: Cell(_gigabytes(row))),
        (
            "  the same, paper (measured)",
            lambda group, row: Cell(printed(group, row, "peak_kv_cache_gb") or NOTHING, "quiet"),
        ),
        ("peak batch", _number(lambda n: str(n.peak_batch))),
        (
            "  the same, paper (measured)",
            lambda group, row: Cell(printed(group, row, "peak_batch_size") or NOTHING, "quiet"),
        ),
        ("memory that is used", _number(lambda n: percent(n.memory.used) if n.memory else NOTHING)),
        ("  reserved", _number(lambda n: percent(n.memory.reserved) if n.memory else NOTHING)),
        ("  lost inside", _number(lambda n: percent(n.memory.lost_inside) if n.memory else NOTHING)),
        ("  lost between", _number(lambda n: percent(n.memory.lost_between) if n.memory else NOTHING)),
        ("saved by sharing", _number(lambda n: percent(n.saved))),
    ]
    return line_table(view, "Memory in the replay", lines)


def _computed(view: View) -> Table:
    lines: list[Line] = [
        ("cached prompt tokens", _number(lambda n: percent(n.hit_share))),
        ("computed, over the least", _number(lambda n: times(n.over_bound))),
        ("preemptions", _number(lambda n: f"{n.preemptions:,.0f}")),
        ("evicted blocks", _number(lambda n: f"{n.evicted_blocks:,.0f}")),
    ]
    return line_table(view, "What was cached and computed in the replay", lines)


def _shared_by_forks(view: View) -> Table:
    def forked(value: Callable[[ReplayFacts], float]) -> Callable[[Group, Row], Cell]:
        def cell(group: Group, row: Row) -> Cell:
            facts = row.facts
            known = isinstance(facts, ReplayFacts) and facts.forks is not None
            return Cell(percent(value(facts)) if known and isinstance(facts, ReplayFacts) else NOTHING)

        return cell

    lines: list[Line] = [
        ("saved by sharing", forked(lambda facts: facts.forks.saved if facts.forks else 0.0)),
        ("prompts, of what is held", forked(lambda facts: facts.forks.prompt_share if facts.forks else 0.0)),
    ]
    return line_table(view, "What the answers of one request share", lines, _forks)


def _forks(row: Row) -> bool:
    return isinstance(row.facts, ReplayFacts) and row.facts.forks is not None


def _number(text: Callable[[ReplayNumbers], str]) -> Callable[[Group, Row], Cell]:
    def cell(_: Group, row: Row) -> Cell:
        numbers = replay_numbers(row)
        return Cell(text(numbers) if numbers else NOTHING)

    return cell


def printed(group: Group, row: Row, column: str) -> str | None:
    """What the paper's Table 4 prints for the system with this manager at this point; None if it has no such row."""
    axes = group.axes
    if axes["rate"] is None or axes["batch_size"] != 32:
        return None
    for known in paper_rows("table4"):
        place = (int(known["n_p"]), int(known["n_s"]), int(known["n_c"]), float(known["rps"]), known["system"])
        wanted = (axes["n_p"], axes["n_s"], axes["n_c"], axes["rate"] / 60, SYSTEMS.get(row.facts.implementation))
        if place == wanted:
            return str(known[column])
    return None


def _gigabytes(row: Row) -> str:
    numbers, facts = replay_numbers(row), row.facts
    if numbers is None or not isinstance(facts, ReplayFacts):
        return NOTHING
    return significant(numbers.peak_slots * facts.token_bytes / 1e9, 3)


def _seeds(row: Row) -> str:
    return f"{_ms(row.derived.low_us)}..{_ms(row.derived.high_us)}" if row.derived.rounds > 1 else NOTHING


def _ms(microseconds: float | None) -> str:
    return NOTHING if microseconds is None else significant(microseconds / 1e3, 3)


def _seconds(numbers: ReplayNumbers, place: int) -> str:
    return significant(numbers.first_token_s[place] * 1e3, 3) if numbers.first_token_s else NOTHING


def _best(group: Group, row: Row) -> Emphasis:
    known = [other.derived.latency_us for other in group.rows.values() if other.derived.latency_us is not None]
    return "best" if row.derived.latency_us == min(known) else "plain"


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
    facts = [row.facts for group in view.groups for row in group.rows.values() if isinstance(row.facts, ReplayFacts)]
    replays = [fact for fact in facts if fact.replays]
    if not replays:
        return "nothing was timed"
    seeds = max(len(fact.replays) for fact in replays)
    sent = sorted({seed.requests for fact in replays for seed in fact.replays})
    requests = f"{sent[0]}" if len(sent) == 1 else f"{sent[0]} to {sent[-1]}"
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
