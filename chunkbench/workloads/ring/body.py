"""The report of a ring: schemes of each point, what a slow link exposes, and what is counted beyond this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from chunkbench.analysis.derive import Group, Row
from chunkbench.analysis.ring import BLOCKS, Device, RingNumbers, Shape, ideal_share, ring_numbers
from chunkbench.paper.printed import ring_devices
from chunkbench.report.cells import fastest, measured, word
from chunkbench.report.model import Cell, Column, Table
from chunkbench.report.numbers import NOTHING, megabytes, ms_of_s, ms_of_us, percent, ratio_span, significant, times
from chunkbench.report.view import Body, View
from chunkbench.store.ring_result import RingResult

_RANKS = (4, 16, 64, 256, 1024)
_TOKENS = 1 << 20
_LEGEND = (
    "ms: a pass, by the slowest rank; the median over rounds in which all schemes took turns, and the least and most "
    "of the ratio to the baseline",
    "of no exchange: rate over that of ranks that hold all K and V from the start",
    "busy: share of the time in which a rank computes, of the least and the most busy one; work: the most pairs of "
    "query and key that a rank computes, over the mean, counted",
    "exposed: share of the transfers' time in which a rank only waits for them",
    "of 6bch: peak memory of a rank, inputs included, over six blocks of its tokens (q, K, V, the arriving K and V, "
    "out; the output is float32)",
    "c*: tokens of a block whose compute takes as long as its transfer, from the probed rates F and B: "
    "(e/2) (KV heads / heads) F / B",
    "counted: computed from rates, never measured; one layer, causal, compute and transfer hide each other as far as "
    "the order allows",
)


def body(view: View) -> Body:
    """Headline, tables and legend of a run."""
    tables = [_schemes(view)]
    if any(group.axes.get("link") for group in view.groups):
        tables.append(_links(view))
    tables += _counted(view)
    return Body(_headline(view), tuple(tables), legend=_LEGEND, timing=_timing(view))


def _timing(view: View) -> str:
    hosts = max((row.facts.hosts for row in view.rows if isinstance(row.facts, RingResult)), default=1)
    where = f"on {hosts} machines" if hosts > 1 else "on one machine, which share its memory: no figure of a network"
    return f"ranks are processes {where}; every scheme was checked against float64 in its first pass"


def _schemes(view: View) -> Table:
    def lines(group: Group) -> list[tuple[Group, Row]]:
        rows = [group.rows[name] for name in view.columns.ids if name in group.rows]
        shown = [row for row in rows if row.facts.status not in ("unsupported", "unavailable")]
        return [(group, row) for row in shown or rows[:1]]

    columns: tuple[Column[tuple[Group, Row]], ...] = (
        Column("", lambda line: view.columns.name(line[1].facts.implementation), align="left"),
        Column("ms", lambda line: _cell(*line), ("ms",)),
        Column("ratio", lambda line: times(line[1].derived.ratio_to_baseline)),
        Column(
            "least..most",
            lambda line: Cell(ratio_span(line[1].derived.ratio_low, line[1].derived.ratio_high, 2), "quiet"),
            ("least..", "most"),
        ),
        Column("of no exchange", lambda line: _of_no_exchange(*line), ("of no", "exchange")),
        Column("busy", lambda line: _with(line[1], _busy)),
        Column("work", lambda line: _work(line[1])),
        Column("transfer ms", lambda line: _with(line[1], lambda n: ms_of_s(n.transfer_s or None)), ("transfer", "ms")),
        Column("exposed", lambda line: _with(line[1], lambda n: percent(n.exposed))),
        Column("sent MB", lambda line: _sent(line[1]), ("sent", "MB")),
        Column("peak MB", lambda line: _with(line[1], lambda n: megabytes(n.peak_bytes)), ("peak", "MB")),
        Column("of 6bch", lambda line: _of_blocks(line[1]), ("of", "6bch")),
        Column("error", lambda line: _error(line[1])),
    )
    return view.table("Schemes", lines, columns, keys=1, apart=True)


def _cell(group: Group, row: Row) -> Cell:
    if row.derived.latency_us is None:
        return word(row)
    return measured(row, ms_of_us(row.derived.latency_us), fastest(group, row))


def _with(row: Row, text: Any) -> str:
    numbers = ring_numbers(row)
    return NOTHING if numbers is None else text(numbers)


def _busy(numbers: RingNumbers) -> str:
    low, high = min(numbers.busy), max(numbers.busy)
    return percent(low) if round(low, 2) == round(high, 2) else f"{percent(low)}..{percent(high)}"


def _work(row: Row) -> str:
    ranks = row.facts.ranks_facts if isinstance(row.facts, RingResult) else ()
    counts: list[int] = [rank.pairs for rank in ranks]
    return f"{max(counts) * len(counts) / sum(counts):.3f}" if counts and sum(counts) else NOTHING


def _sent(row: Row) -> str:
    ranks = row.facts.ranks_facts if isinstance(row.facts, RingResult) else ()
    most = max((rank.sent_bytes for rank in ranks if rank.sent_bytes is not None), default=0)
    return megabytes(most) if most else NOTHING


def _of_blocks(row: Row) -> str:
    numbers, facts = ring_numbers(row), row.facts
    if numbers is None or numbers.of_six_blocks is None or not isinstance(facts, RingResult):
        return NOTHING
    return f"{numbers.of_six_blocks:.2f}" if facts.phase == "prefill" else NOTHING


def _error(row: Row) -> str:
    facts = row.facts
    return f"{facts.max_error:.1e}" if isinstance(facts, RingResult) and facts.max_error is not None else NOTHING


def _of_no_exchange(group: Group, row: Row) -> str:
    base, latency = group.rows.get("no_exchange"), row.derived.latency_us
    if base is None or base.derived.latency_us is None or latency is None:
        return NOTHING
    return percent(base.derived.latency_us / latency)


def _links(view: View) -> Table:
    """The ring at each point with a slow link: c against the predicted break-even block."""

    def lines(group: Group) -> list[Row]:
        row = group.rows.get("ring")
        return [row] if row is not None and group.axes.get("link") and ring_numbers(row) is not None else []

    columns: tuple[Column[Row], ...] = (
        Column("c", lambda row: f"{_facts(row).n_p // _facts(row).ranks:,}"),
        Column("c* predicted", lambda row: _break_even(_facts(row)), ("c*", "predicted")),
        Column("c / c*", lambda row: _over_break_even(_facts(row))),
        Column("exposed", lambda row: _with(row, lambda n: percent(n.exposed))),
        Column("predicted", lambda row: Cell(_predicted(_facts(row)), "quiet")),
        Column("busy", lambda row: _with(row, _busy)),
    )
    return view.table("A slow link: exposed transfers of the ring", lines, columns)


def _facts(row: Row) -> RingResult:
    assert isinstance(row.facts, RingResult)
    return row.facts


def break_even(facts: RingResult) -> float | None:
    """c* of a point from its probed rates; of a causal ring's first step twice as much, since half of it is hidden."""
    if facts.flops_per_s is None or facts.bytes_per_s is None:
        return None
    device = Device("here", facts.flops_per_s, facts.bytes_per_s)
    own = device.break_even(facts.element_bytes, facts.heads / facts.kv_heads)
    return own if facts.mask == "full" else 2 * own


def _break_even(facts: RingResult) -> str:
    tokens = break_even(facts)
    return NOTHING if tokens is None else significant(tokens, 3)


def _over_break_even(facts: RingResult) -> str:
    tokens = break_even(facts)
    return NOTHING if tokens is None else f"{facts.n_p / facts.ranks / tokens:.2f}"


def _predicted(facts: RingResult) -> str:
    tokens = break_even(facts)
    return NOTHING if tokens is None else percent(max(0.0, 1 - facts.n_p / facts.ranks / tokens))


@dataclass(frozen=True)
class _Count:
    device: Device
    ranks: int


def _counted(view: View) -> list[Table]:
    """Time, bytes and break-even blocks of 4 to 1,024 ranks; empty without probed rates."""
    probed = [
        row.facts
        for row in view.rows
        if isinstance(row.facts, RingResult) and row.facts.flops_per_s and row.facts.bytes_per_s
    ]
    free = [facts for facts in probed if facts.link is None and facts.phase == "prefill"] or probed
    if not free:
        return []
    facts = max(free, key=lambda facts: facts.n_p)
    alike = [other for other in free if (other.n_p, other.dtype) == (facts.n_p, facts.dtype)]
    rates = (median(getattr(other, name) or 0.0 for other in alike) for name in ("flops_per_s", "bytes_per_s"))
    here = Device("a rank here", *rates)
    given = [
        Device(entry["name"], entry["tflops"] * 1e12, entry["gb_per_s"] * 1e9) for entry in view.experiment.accelerators
    ]
    others = [Device(row.name, row.tflops * 1e12, row.gb_per_s * 1e9) for row in ring_devices()]
    shape = Shape(_TOKENS, facts.heads, facts.kv_heads, facts.head_dim, facts.element_bytes)
    items = [_Count(device, ranks) for device in (here, *given, others[0]) for ranks in _RANKS]
    times_columns: tuple[Column[_Count], ...] = (
        Column("device", lambda item: item.device.name if item.ranks == _RANKS[0] else "", align="left"),
        Column("ranks", lambda item: f"{item.ranks:,}"),
        Column("c", lambda item: f"{_TOKENS // item.ranks:,}"),
        Column("sent MB", lambda item: megabytes(int(shape.sent_bytes(item.ranks))), ("sent", "MB")),
        *(_seconds_column(shape, name, order) for name, order in _ORDERS),
        Column("ideal ring", lambda item: percent(ideal_share(item.ranks)), ("ring's", "share")),
    )
    gaps = frozenset(n for n in range(len(_RANKS) - 1, len(items) - 1, len(_RANKS)))
    words = f"{_TOKENS:,} tokens, {facts.heads} heads of {facts.head_dim}, {facts.dtype}"
    devices: tuple[Column[tuple[Device, int, float]], ...] = (
        Column("device", lambda line: line[0].name, align="left"),
        Column("TFLOP/s", lambda line: significant(line[0].flops_per_s / 1e12, 3)),
        Column("GB/s", lambda line: significant(line[0].bytes_per_s / 1e9, 3)),
        Column("c*", lambda line: significant(line[2], 3)),
        Column("6 c*", lambda line: significant(BLOCKS * line[2], 3)),
    )
    group = facts.heads / facts.kv_heads
    blocks = [(here, facts.element_bytes, here.break_even(facts.element_bytes, group))]
    blocks += [(device, 2, device.break_even()) for device in (*given, *others)]
    return [
        Table(f"Counted, not measured: a pass of {words}", times_columns, items, 2, gaps),
        Table("Counted, not measured: break-even blocks and least sequences, tokens", devices, blocks),
    ]


_ORDERS: Sequence[tuple[str, Any]] = (("ring ms", "ring"), ("zigzag ms", "zigzag"), ("all-gather ms", "all_gather"))


def _seconds_column(shape: Shape, name: str, order: Any) -> Column[_Count]:
    return Column(name, lambda item: ms_of_s(shape.seconds(item.device, item.ranks, order)), tuple(name.split()))


def _headline(view: View) -> str:
    """How the balanced ring compares with one process, where most tokens are."""
    found = [
        (group.axes["n_p"], row)
        for group in view.groups
        for name, row in group.rows.items()
        if name == "zigzag" and row.derived.ratio_to_baseline is not None
    ]
    if not found:
        return ""
    tokens, row = max(found, key=lambda pair: pair[0])
    facts, ratio = _facts(row), row.derived.ratio_to_baseline or 1.0
    base = view.columns.name(view.baseline)
    return f"The zigzag ring of {facts.ranks} ranks takes {ratio:.2f} of the time of {base} at {tokens:,} tokens."
