"""The report of a ring: the schemes at each point, transfers that a slow link exposes, and computed times of more
ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.bench.store import Manifest
from chunkbench.report.layout import Layout, Report
from chunkbench.report.model import Cell, Column, Table
from chunkbench.report.numbers import (
    NOTHING,
    extent,
    fastest,
    measured,
    megabytes,
    ms_of_s,
    ms_of_us,
    percent,
    ratio_span,
    significant,
    times,
    word,
)
from chunkbench.report.printed import ring_devices
from chunkbench.report.view import Body, View
from chunkbench.workloads.ring import claims
from chunkbench.workloads.ring.metrics import BLOCKS, METRICS, busy
from chunkbench.workloads.ring.rates import Device, Shape, break_even, ideal_share
from chunkbench.workloads.ring.result import RingResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_RANKS = (4, 16, 64, 256, 1024)
_TOKENS = 1 << 20
_LEGEND = (
    "ms: time of a pass, set by the slowest rank; median over rounds in which all schemes took turns. least..most: "
    "lowest and highest ratio to the baseline",
    "of no exchange: rate over that of ranks that hold all K and V from the start",
    "busy: share of the time in which a rank computes, for the least and the most busy rank; work: pairs of query "
    "and key of the rank with most, over the mean of all ranks; counted from the layout",
    "exposed: share of the transfers' time in which a rank only waits for them",
    "of 6bch: peak memory of a rank, inputs included, over six blocks of its tokens (q, K, V, the arriving K and V, "
    "and the output, which is float32)",
    "c*: number of tokens for which computing a block takes as long as its transfer, from the probed rates F and B: "
    "(e/2) (KV heads / heads) F / B",
    "counted: computed from rates, never measured; for one causal layer; computing and transfers hide each other as "
    "far as the order allows",
)


def body(view: View) -> Body:
    tables = [_schemes(view)]
    if any(group.axes.get("link") for group in view.groups):
        tables.append(_links(view))
    tables += _counted(view)
    return Body(_headline(view), tuple(tables), legend=_LEGEND, timing=_timing(view))


def _timing(view: View) -> str:
    hosts = max((row.facts.hosts for row in view.rows if isinstance(row.facts, RingResult)), default=1)
    where = (
        f"on {hosts} machines"
        if hosts > 1
        else "on one machine and share its memory, so no figure is that of a network"
    )
    return f"ranks are processes {where}; every scheme was checked against float64 in its first pass"


def _schemes(view: View) -> Table:
    """A table with a line that names each point, followed by a line for each scheme that supports the point."""
    items: list[tuple[Group, Row | None]] = []
    breaks = []
    for group in view.groups:
        rows = [group.rows[name] for name in view.columns.ids if name in group.rows]
        shown = [row for row in rows if row.facts.status not in ("unsupported", "unavailable")]
        items += [(group, None), *((group, row) for row in shown)]
        breaks.append(len(items) - 1)

    def column(name: str, show: Callable[[Group, Row], Cell | str], *heading: str) -> Column[tuple[Group, Row | None]]:
        return Column(name, lambda item: "" if item[1] is None else show(item[0], item[1]), heading)

    def first(item: tuple[Group, Row | None]) -> str:
        group, row = item
        return _point(view, group) if row is None else f"  {view.columns.name(row.facts.implementation)}"

    def figure(name: str) -> Column[tuple[Group, Row | None]]:
        metric = METRICS[name]
        return column(metric.label, lambda _, row: metric.cell(row), *metric.label.split(" "))

    columns = (
        Column("scheme", first, align="left"),
        column("ms", _cell),
        column("ratio", lambda _, row: times(row.derived.ratio_to_baseline)),
        column("least..most", lambda _, row: _span(row), "least..", "most"),
        column("of no exchange", _of_no_exchange, "of no", "exchange"),
        column("busy", lambda _, row: _busy(_facts(row))),
        *map(figure, ("work", "exposed", "sent_bytes", "peak_bytes", "of_six_blocks", "max_error")),
    )
    return Table("Schemes", columns, items, 1, frozenset(breaks[:-1]))


def _point(view: View, group: Group) -> str:
    """A description of a point."""
    axes = group.axes
    words = [str(axes["phase"]), f"{axes['n_p']:,} tokens"]
    if axes["phase"] == "decode":
        words += [f"{axes['batch_size']} sequences", f"{axes['n_s']:,} shared"]
    else:
        words.insert(1, str(axes["mask"]))
    if axes.get("link"):
        words.append(f"link {significant(axes['link'] / 1e9, 2)} GB/s")
    named = ("phase", "mask", "n_p", "n_s", "batch_size", "link")
    return ", ".join([*words, *(f"{axis} {view.text(axis, axes[axis])}" for axis in view.axes if axis not in named)])


def _span(row: Row) -> Cell:
    return Cell(ratio_span(row.derived.ratio_low, row.derived.ratio_high, 2), "quiet")


def _cell(group: Group, row: Row) -> Cell:
    if row.derived.latency_us is None:
        return word(row)
    return measured(row, ms_of_us(row.derived.latency_us), fastest(group, row))


def _busy(facts: RingResult) -> str:
    return extent(busy(facts), percent, "..") or NOTHING


def _of_no_exchange(group: Group, row: Row) -> str:
    base, latency = group.rows.get("no_exchange"), row.derived.latency_us
    if base is None or base.derived.latency_us is None or latency is None:
        return NOTHING
    return percent(base.derived.latency_us / latency)


def _links(view: View) -> Table:
    """A table of the ring at points with a slow link: block size c beside the predicted break-even block c*."""

    def lines(group: Group) -> list[Row]:
        row = group.rows.get("ring")
        return [row] if row is not None and group.axes.get("link") and _facts(row).times else []

    columns: tuple[Column[Row], ...] = (
        Column("c", lambda row: f"{_facts(row).n_p // _facts(row).ranks:,}"),
        Column("c* predicted", lambda row: _break_even(_facts(row)), ("c*", "predicted")),
        Column("c / c*", lambda row: _over_break_even(_facts(row))),
        Column("exposed", METRICS["exposed"].cell),
        Column("predicted", lambda row: Cell(_predicted(_facts(row)), "quiet")),
        Column("busy", lambda row: _busy(_facts(row))),
    )
    return view.table("The ring on a slow link: exposed transfers", lines, columns)


def _facts(row: Row) -> RingResult:
    assert isinstance(row.facts, RingResult)
    return row.facts


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
    """Tables of computed times, bytes and break-even blocks for 4 to 1,024 ranks; empty without probed rates."""
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
    probed_device = Device("a rank here", *rates)
    accelerators = [Device.of_rates(**entry) for entry in view.experiment.accelerators]
    printed_devices = [Device.of_rates(row.name, row.tflops, row.gb_per_s) for row in ring_devices()]
    shape = Shape(_TOKENS, facts.heads, facts.kv_heads, facts.head_dim, facts.element_bytes)
    items = [_Count(device, ranks) for device in (probed_device, *accelerators, printed_devices[0]) for ranks in _RANKS]
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
    blocks = [(probed_device, facts.element_bytes, probed_device.break_even(facts.element_bytes, group))]
    blocks += [(device, 2, device.break_even()) for device in (*accelerators, *printed_devices)]
    return [
        Table(f"Counted, not measured: a pass of {words}", times_columns, items, 2, gaps),
        Table("Counted, not measured: break-even blocks, and shortest sequences per rank, in tokens", devices, blocks),
    ]


_ORDERS: Sequence[tuple[str, Any]] = (("ring ms", "ring"), ("zigzag ms", "zigzag"), ("all-gather ms", "all_gather"))


def _seconds_column(shape: Shape, name: str, order: Any) -> Column[_Count]:
    return Column(name, lambda item: ms_of_s(shape.seconds(item.device, item.ranks, order)), tuple(name.split()))


def _headline(view: View) -> str:
    """A sentence that compares the zigzag ring with the baseline, at the point with most tokens."""
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


def _draw(report: Report, manifest: Manifest) -> Figure | None:
    from chunkbench.workloads.ring.figure import draw

    return draw(report, manifest)


LAYOUT = Layout(body, _draw, METRICS, claims.JUDGES)
