"""Profiles of a case: their numbers, and the document that `chunkbench profile` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from chunkbench.bench.analysis.roofline import PROBE_ERROR_ABOVE, roofline_fraction, roofline_us
from chunkbench.bench.store.profile import ProfileFacts, TraceFacts, Unit
from chunkbench.report.model import Column, Output, Table
from chunkbench.report.numbers import NOTHING, count, megabytes, micros, ms_of_s, percent, ratio, significant, times
from chunkbench.report.numbers import span as span_of_us


class Phase(NamedTuple):
    """Sums over several units of work of one call, for example over all shared units. Seconds are summed over all
    threads.
    """

    name: str
    units: int
    read_bytes: int
    flops: int
    scores_s: float
    softmax_s: float
    values_s: float
    merging_s: float
    """Seconds to begin and end the work: set up sums, add partial results, store results."""
    waiting_s: float
    seconds: float


class Thread(NamedTuple):
    """How one thread spends the time until the last unit of the call has ended."""

    number: int
    computing_s: float
    waiting_s: float
    idle_s: float


class Overlap(NamedTuple):
    """Median seconds over rounds: only reading, only computing, and a traced decode, which does both."""

    read_s: float
    compute_s: float
    decode_s: float

    @property
    def hideable_s(self) -> float:
        """The most seconds that overlap could save: the shorter of reading and computing."""
        return min(self.read_s, self.compute_s)

    @property
    def hidden_s(self) -> float:
        """Seconds that overlap saves: reading plus computing, minus the decode."""
        return min(max(self.read_s + self.compute_s - self.decode_s, 0.0), self.hideable_s)


def wall_s(trace: TraceFacts) -> float:
    """Seconds from the start of the native call to the end of its last unit."""
    return max(unit.end_s for unit in trace.units)


def middle(traces: Sequence[TraceFacts]) -> TraceFacts:
    """The call with the median time. Of an even number of calls, it is the shorter of the two middle ones."""
    return sorted(traces, key=wall_s)[(len(traces) - 1) // 2]


def phases(trace: TraceFacts) -> list[Phase]:
    """Three sums: over the shared units, over the private units, and over all units. If all units are shared, or all
    are private, there is only one sum.
    """
    parts = (_phase(name, [unit for unit in trace.units if unit.shared == (name == "shared")]) for name in _NAMES)
    found = [part for part in parts if part.units]
    return found if len(found) == 1 else [*found, _phase("all", trace.units)]


_NAMES = ("shared", "private")


def _phase(name: str, units: Sequence[Unit]) -> Phase:
    total = {field: sum(getattr(unit, field) for unit in units) for field in Unit._fields}
    scores, softmax, values = total["scores_s"], total["softmax_s"], total["values_s"]
    return Phase(
        name=name,
        units=len(units),
        read_bytes=int(total["read_bytes"]),
        flops=int(total["flops"]),
        scores_s=scores,
        softmax_s=softmax,
        values_s=values,
        merging_s=total["end_s"] - total["ready_s"] - scores - softmax - values,
        waiting_s=total["ready_s"] - total["begin_s"],
        seconds=total["end_s"] - total["begin_s"],
    )


def threads(trace: TraceFacts) -> list[Thread]:
    """The times of every thread, also of threads that got no unit."""
    wall, found = wall_s(trace), []
    for number in range(trace.threads):
        own = [unit for unit in trace.units if unit.thread == number]
        computing = sum(unit.end_s - unit.ready_s for unit in own)
        waiting = sum(unit.ready_s - unit.begin_s for unit in own)
        found.append(Thread(number, computing, waiting, max(wall - computing - waiting, 0.0)))
    return found


def overlap(facts: ProfileFacts) -> Overlap | None:
    """Median times of reading alone, of computing alone, and of a decode. None without traces. Also None if a core's
    own cache cannot hold what a unit reads of one chunk: then computing alone would include waits for memory.
    """
    if not facts.compute or facts.compute[0].place_bytes > (facts.l2_bytes or 0):
        return None
    return Overlap(*(median(map(wall_s, traces)) for traces in (facts.read, facts.compute, facts.decode)))


LIMIT = 0.9
"""A part of a decode counts as its limit if it takes at least this share of the time."""
_MUCH = 0.1
"""The text mentions only parts of a decode with at least this share of the time."""
_REPEATED = 1.5
_OPERATORS = 6
_LEGEND = (
    "shared: units of work whose chunks several rows read at once; start, merge: time to begin rows, add partial "
    "results and store results; waiting: time until partial results are there; idle: time before a thread's first "
    "unit, or when no unit is left"
)
Row = tuple[Any, ...]


def document(facts: ProfileFacts, where: str, machine: str) -> Output:
    """The profile as a document for readers and programs. `where` names the point, and `machine` the machine that
    measured the profile.
    """
    first, *more = _sentences(facts)
    traced = [_phases(facts), _threads(facts), _overlap(facts)] if facts.decode else []
    watched = [_operators(facts)] if facts.watched and not facts.decode else []
    return Output(
        title=f"{facts.case.label} at {where}",
        warnings=(f"noisy: {facts.case.reason}",) if facts.case.reason else (),
        verdict=first,
        headline=" ".join(more),
        tables=(_times(facts), _limits(facts), *traced, *watched),
        legend=(_LEGEND,) if facts.decode else (),
        footer=tuple(_footer(facts, machine)),
        data=_data(facts),
    )


def cold_us(facts: ProfileFacts) -> float:
    """Median microseconds of a decode with cold caches."""
    return median(samples[0] for samples in facts.case.samples_us)


def peaks(facts: ProfileFacts) -> tuple[float, float]:
    """(read bandwidth in bytes/s, matrix rate in FLOP/s), medians over rounds."""
    found = facts.case.peaks
    return median(each.read_bytes_per_s for each in found), median(each.matrix_flops_per_s for each in found)


def _sentences(facts: ProfileFacts) -> list[str]:
    """Sentences that say what limits the case, as far as the figures show it."""
    case, (bandwidth, rate) = facts.case, peaks(facts)
    side = "memory" if case.unique_bytes[0] / bandwidth > case.flops[0] / rate else "arithmetic"
    nearness = f"It reaches {percent(roofline_fraction(case))} of the roofline, which {side} sets here."
    more = case.read_bytes[0] / case.unique_bytes[0]
    if more >= _REPEATED:
        nearness += f" It reads {times(more)} the bytes that every implementation must move."
    return [*(_from_traces(facts) if facts.decode else _from_rates(facts)), nearness]


def _from_traces(facts: ProfileFacts) -> Iterator[str]:
    trace, overlapping = middle(facts.decode), overlap(facts)
    reading = median(map(wall_s, facts.read)) / median(map(wall_s, facts.decode))
    computing = overlapping.compute_s / overlapping.decode_s if overlapping else 0.0
    outside = 1 - median(map(wall_s, facts.decode)) / (cold_us(facts) / 1e6)
    if outside > _MUCH:
        yield f"{percent(outside)} of the decode is spent outside of the kernel: in Python, to start and end threads."
    if min(reading, computing) >= LIMIT:
        yield f"Reading alone takes {ratio(reading)} of the kernel's time, computing alone {ratio(computing)}."
    elif reading >= LIMIT:
        yield f"Reading limits it: reading alone takes {ratio(reading)} of the kernel's time."
    elif computing >= LIMIT:
        parts = phases(middle(facts.compute))
        most = max(parts[:2], key=lambda part: part.seconds)
        where = f" on {most.name} chunks" if most.seconds >= LIMIT * parts[-1].seconds else ""
        yield f"Computing{where} limits it: computing alone takes {ratio(computing)} of the kernel's time."
    elif overlapping:
        alone = f"reading alone takes {ratio(reading)} of the kernel's time, computing alone {ratio(computing)}"
        yield f"Neither reading nor computing limits it alone: {alone}."
    else:
        yield f"Reading alone takes {ratio(reading)} of the kernel's time; computing alone is not known."
    if overlapping and overlapping.hideable_s - overlapping.hidden_s > _MUCH * overlapping.decode_s:
        left = f"{ms_of_s(overlapping.hideable_s - overlapping.hidden_s)} of {ms_of_s(overlapping.decode_s)} ms"
        yield f"Reading and computing overlap in part: perfect overlap would save at most {left}."
    idle = sum(thread.idle_s for thread in threads(trace)) / trace.threads / wall_s(trace)
    if idle > _MUCH:
        yield f"Threads are idle for {percent(idle)} of the kernel's time: they start, or no unit of work is left."


def _from_rates(facts: ProfileFacts) -> Iterator[str]:
    reading, computing = _share(facts, facts.case.read_bytes[0], 0), _share(facts, 0, facts.case.flops[0])
    shares = f"its own bytes take {ratio(reading)} of the decode at the machine's peaks, its FLOPs {ratio(computing)}"
    if reading > 1 / LIMIT:
        yield f"Caches serve a part of what it reads: {shares.replace('take', 'would take')}."
    elif max(reading, computing) >= LIMIT:
        yield f"{'Reading' if reading >= computing else 'Computing'} limits it: {shares}."
    else:
        yield f"Neither memory nor arithmetic limits it alone: {shares}."
    seen = [1 - sum(each.self_us for each in watched.operators) / watched.us for watched in facts.watched]
    if seen and median(seen) > _MUCH:
        yield f"{percent(median(seen))} of the decode is spent outside of PyTorch's operators."


def _table(title: str, headings: Sequence[str], rows: Sequence[Row]) -> Table:
    """A table of texts; the first column is aligned to the left, the others to the right."""

    def column(place: int) -> Column[Row]:
        return Column(headings[place], lambda row: str(row[place]), align="right" if place else "left")

    return Table(title, tuple(map(column, range(len(headings)))), rows)


def _times(facts: ProfileFacts) -> Table:
    case, cold = facts.case, cold_us(facts)
    samples: Mapping[str, Sequence[float]] = {
        "decode, cold caches": [each[0] for each in case.samples_us],
        "decode, warm caches": facts.warm_us,
        "decode, cold caches, one thread": facts.one_thread_us,
        "append": [fmean(steps) for steps in case.append_samples_us],
        "plan": [fmean(steps) for steps in case.plan_samples_us],
    }
    rows = [
        (name, micros(median(each)), span_of_us(min(each), max(each)), times(median(each) / cold))
        for name, each in samples.items()
        if each
    ]
    title = f"Times: medians of {count(len(case.samples_us), 'round')}, microseconds"
    return _table(title, ("call", "median", "least..most", "of the decode"), rows)


def _limits_us(facts: ProfileFacts, moved: int, work: int) -> list[float]:
    """[round] microseconds that these bytes or this arithmetic take at the round's peaks, whichever takes longer."""
    return [roofline_us(moved, work, found) for found in facts.case.peaks]


def _share(facts: ProfileFacts, moved: int, work: int) -> float:
    """Share of the decode that these bytes or this arithmetic take: formed per round, then the median over rounds, like
    `roofline_fraction`.
    """
    limits = zip(_limits_us(facts, moved, work), facts.case.samples_us, strict=True)
    return median(limit / samples[0] for limit, samples in limits)


def _limits(facts: ProfileFacts) -> Table:
    case, (bandwidth, rate) = facts.case, peaks(facts)

    def row(name: str, amount: str, peak: str, moved: int, work: int) -> Row:
        limit = median(_limits_us(facts, moved, work))
        return (name, amount, peak, micros(limit), percent(_share(facts, moved, work)))

    def memory(name: str, moved: int) -> Row:
        return row(name, f"{megabytes(moved)} MB", f"{significant(bandwidth / 1e9, 3)} GB/s", moved, 0)

    work, speed = f"{significant(case.flops[0] / 1e9, 3)} GFLOP", f"{significant(rate / 1e9, 3)} GFLOP/s"
    rows = [
        memory("bytes that every implementation must move", case.unique_bytes[0]),
        memory("bytes that this implementation must read itself", case.read_bytes[0]),
        row("arithmetic", work, speed, 0, case.flops[0]),
        row("roofline: the longer of first and last line", "", "", case.unique_bytes[0], case.flops[0]),
    ]
    title = "The machine's limits: medians over rounds, each with its own peaks and decode"
    return _table(title, ("limit", "amount", "at its peak", "µs", "of the decode"), rows)


def _phases(facts: ProfileFacts) -> Table:
    rows = [
        (name, units, megabytes(read), significant(flops / 1e9, 3), *map(ms_of_s, seconds))
        for name, units, read, flops, *seconds in phases(middle(facts.decode))
    ]
    title = "Work and milliseconds, summed over threads, of the traced decode with the median time"
    headings = ("chunks", "units", "MB", "GFLOP", "scores", "softmax", "values", "start, merge", "waiting", "all")
    return _table(title, headings, rows)


def _threads(facts: ProfileFacts) -> Table:
    rows = [(number, *map(ms_of_s, seconds)) for number, *seconds in threads(middle(facts.decode))]
    return _table("Threads of the traced decode, milliseconds", ("thread", "computing", "waiting", "idle"), rows)


def _overlap(facts: ProfileFacts) -> Table:
    def row(name: str, seconds: Sequence[float], note: str) -> Row:
        return (name, ms_of_s(median(seconds)), f"{ms_of_s(min(seconds))}..{ms_of_s(max(seconds))}", note)

    read, compute, decode = (list(map(wall_s, calls)) for calls in (facts.read, facts.compute, facts.decode))
    speed = sum(unit.read_bytes for unit in facts.read[0].units) / median(read)
    work = sum(unit.flops for unit in facts.compute[0].units) / median(compute)
    caches = (
        ", caches help" if speed > PROBE_ERROR_ABOVE * max(each.read_bytes_per_s for each in facts.case.peaks) else ""
    )
    rows = [row("reading alone", read, f"{significant(speed / 1e9, 3)} GB/s{caches}")]
    both, hidden = overlap(facts), ""
    if both:
        hidden = f"hidden: {ms_of_s(both.hidden_s)} of {ms_of_s(both.hideable_s)} ms"
        rows += [
            row("computing alone", compute, f"{significant(work / 1e9, 3)} GFLOP/s"),
            ("if they overlapped perfectly", ms_of_s(max(both.read_s, both.compute_s)), "", "the longer one"),
            ("if they did not overlap", ms_of_s(both.read_s + both.compute_s), "", "both"),
        ]
    else:
        place = f"the {megabytes(facts.compute[0].place_bytes)} MB of a unit stay in no core's own cache"
        if facts.l2_bytes is None:
            place = "the size of a core's own cache is not known"
        rows.append(("computing alone", NOTHING, "", place))
    rows.append(row("both: the traced decode", decode, hidden))
    plain = cold_us(facts) / 1e6
    against = f"{times(plain / median(decode))} the traced kernel"
    rows.append(("the decode call as runs time it, through Python", ms_of_s(plain), "", against))
    title = "Reading and computing, each alone and together, milliseconds"
    return _table(title, ("call", "median", "least..most", ""), rows)


def _operators(facts: ProfileFacts) -> Table:
    seen = sorted(facts.watched, key=lambda each: each.us)[(len(facts.watched) - 1) // 2]
    shown, others = seen.operators[:_OPERATORS], seen.operators[_OPERATORS:]
    rows: list[Row] = list(shown)
    if others:
        rows.append(("other operators", sum(each.calls for each in others), sum(each.self_us for each in others)))
    rows.append(("outside of operators", "", max(0.0, seen.us - sum(each.self_us for each in seen.operators))))
    slower = times(median(each.us for each in facts.watched) / cold_us(facts))
    title = f"PyTorch's operators in a watched decode, own time; watched over plain decode: {slower}"
    cells = [(name, calls, micros(us), percent(us / seen.us)) for name, calls, us in rows]
    return _table(title, ("operator", "calls", "µs", "of it"), cells)


def _footer(facts: ProfileFacts, machine: str) -> Iterator[tuple[str, str]]:
    case = facts.case
    yield "machine", machine
    yield "software", ", ".join(filter(None, (case.package_version, case.isa, count(case.threads or 1, "thread"))))
    yield "checked", f"largest error against float64 {case.max_error or 0:.1e} (tolerance {case.tolerance:.0e})"
    rounds = count(len(case.samples_us), "round")
    yield "timing", f"step {case.n_c}; {rounds}, all kinds of calls in turns, peaks probed in every round"
    if case.huge_share is not None:
        yield "pages", f"{percent(case.huge_share)} of its memory in huge pages"
    counts = ", ".join(f"{event} {number:.4g}" for event, number in facts.counters.items())
    yield "perf counters", f"{counts}: a decode with warm caches" if counts else f"unavailable: {facts.no_counters}"


def _data(facts: ProfileFacts) -> dict[str, Any]:
    """The facts of the profile; of each traced call its time, and of the median call also its units."""
    traces: Mapping[str, tuple[TraceFacts, ...]] = {
        "decode": facts.decode,
        "read": facts.read,
        "compute": facts.compute,
    }
    data = facts.model_dump(mode="json", exclude=set(traces)) | {"limits": _sentences(facts)}
    for name, calls in traces.items():
        if calls:
            units = [unit._asdict() for unit in middle(calls).units]
            data[name] = {"seconds": list(map(wall_s, calls)), "units": units}
    return data
