"""The footer of a report: machine, settings, way of timing, and warnings against wrong comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.bench.analysis.points import AXES, describe
from chunkbench.bench.experiment.point import AS_BEFORE
from chunkbench.bench.store.manifest import MachineFacts, Manifest
from chunkbench.bench.store.results import TimedResult
from chunkbench.report import gpu_facts
from chunkbench.report.columns import Columns
from chunkbench.report.numbers import count, extent, gigabytes, significant
from chunkbench.report.statuses import one_line

UNIT_OF_TABLE_3 = (
    "The header of the paper's Table 3 says ms, but its values agree with the rest of the paper only as microseconds "
    "per decode step: its Table 1 gives 687.74 µs for 32 sequences of 2048 tokens, where Table 3 has 702.98."
)
NOT_COMPARABLE = (
    "The paper measured on an A100 80 GB in float16 with the libraries of its time. Compare ratios between "
    "implementations with the paper's, not times. Ratios, too, depend on a machine's balance of memory and arithmetic."
)
VLLM_STANDS_IN = "The paper's PagedAttn is compared with vLLM's kernel on this device, its PagedAttn* with vLLM*."

_HOW: Mapping[str, str] = {
    "strict": "implementations take turns in random order inside every round",
    "paper": "as the authors timed it: one warm-up, every step synchronised, one round",
}


def footer(
    manifest: Manifest, groups: Sequence[Group], varying: Sequence[str], columns: Columns, timing: str | None
) -> list[tuple[str, str]]:
    """Make the footer of a report: (topic, text) in reading order. Topics without text are left out. `timing`, if
    given, replaces the text of the topic "timing"."""
    rows = [row for group in groups for row in group.rows.values()]
    timed = [row for row in rows if row.derived.latency_us is not None]
    in_rounds = [row.timed for row in timed if row.timed]
    entries = [
        ("machine", _machine(manifest, rows)),
        ("software", _software(manifest, rows)),
        ("point", _constants(groups[0], varying)),
        ("data", _data(rows, timed)),
        ("timing", _timing([row.timed for row in rows if row.timed], in_rounds) if timing is None else timing),
        ("samples", gpu_facts.samples(in_rounds)),
        ("gpu", gpu_facts.conditions(in_rounds)),
        ("interval", _interval(manifest, timed)),
        ("peaks", _peaks(in_rounds)),
        ("pages", _pages(timed)),
        ("paper", _paper(rows)),
        *(("note", text) for text in _notes(manifest, rows, columns)),
    ]
    return [(topic, text) for topic, text in entries if text]


_IN_OTHER_TOPICS = ("protocol", "cache", "mode", "device", "dtype", "threads")


def _machine(manifest: Manifest, rows: Sequence[Row]) -> str:
    """The hardware of every machine of the run, with the machine's id if there are several."""
    several = len(manifest.machines) > 1
    machines = [f"{id}: {_hardware(facts)}" if several else _hardware(facts) for id, facts in manifest.machines.items()]
    parts = ["; ".join(machines), f"{rows[0].facts.VERB} on {_list(row.facts.device for row in rows)}"]
    return ", ".join(part for part in parts if part)


def _hardware(machine: MachineFacts) -> str:
    cores, memory, limit = machine.cpu.cores, machine.memory_bytes, machine.memory_limit_bytes
    limited = f" (a control group allows {gigabytes(limit)})" if memory and limit and limit < memory else ""
    parts = [
        machine.name,
        count(cores, "core") if cores is not None else "",
        f"{gigabytes(memory)} of memory{limited}" if memory is not None else "",
    ]
    return ", ".join(part for part in parts if part)


def _software(manifest: Manifest, rows: Sequence[Row]) -> str:
    version, commit = manifest.chunkbench_version, manifest.git.named(10)
    machines = manifest.machines.values()
    packages = dict.fromkeys(row.facts.package_version for row in rows if row.facts.package_version)
    parts = [
        f"chunkbench {version}{f' (git {commit})' if commit else ''}" if version else "",
        *dict.fromkeys(machine.python for machine in machines),
        *dict.fromkeys(f"torch {machine.torch.version}" for machine in machines if machine.torch.version),
        *(package for package in packages if not package.startswith(("torch ", "chunkbench "))),
    ]
    return ", ".join(part for part in parts if part)


def _data(rows: Sequence[Row], timed: Sequence[Row]) -> str:
    drawn = "; inputs standard normal" if any(row.session for row in rows) else ""
    computed = _list(row.facts.dtype for row in rows)
    weights = dict.fromkeys(row.facts.axis("weights") for row in rows)
    parts = [
        f"{computed}{drawn}",
        *(f"weights: {text} to {computed}" for text in weights if text),
        f"seed {_list(row.facts.seed for row in rows)}",
    ]
    checked = [r.session for r in timed if r.session and r.session.max_error is not None and r.session.tolerance]
    dtypes = dict.fromkeys(facts.dtype for facts in checked)
    for dtype in dtypes:
        worst = max((f for f in checked if f.dtype == dtype), key=lambda f: (f.max_error or 0.0) / (f.tolerance or 1.0))
        where = f" in {dtype}" if len(dtypes) > 1 else ""
        parts.append(f"largest error against float64{where} {worst.max_error:.1e} (tolerance {worst.tolerance:.0e})")
    return "; ".join(parts)


def _timing(results: Sequence[TimedResult], timed: Sequence[TimedResult]) -> str:
    """How `results` were timed; `timed` are those with a latency."""
    parts = []
    for protocol in dict.fromkeys(result.protocol for result in results):
        caches = _list(result.cache for result in results if result.protocol == protocol)
        modes = _list(result.mode for result in results if result.protocol == protocol)
        parts.append(f"protocol {protocol} ({_HOW[protocol]}), caches {caches}, mode {modes}")
    if timed:
        parts.append(f"rounds a point: {extent(len(result.samples_us) for result in timed)}")
        for n_c in sorted({result.axis("n_c") for result in timed}):
            steps = {len(result.steps) for result in timed if result.axis("n_c") == n_c}
            every = "the only step timed" if n_c == 1 else f"all {n_c} steps timed"
            some = f"{extent(steps)} of {n_c} steps timed, evenly spread, the same for all"
            parts.append(every if steps == {n_c} else some)
        shared = {result.longest_n_c for result in timed if result.longest_n_c}
        if shared:
            parts.append(f"smaller n_c are the first steps of the pass to n_c = {_list(sorted(shared))}")
        threads = {result.threads for result in timed if result.threads}
        parts += [f"threads {_list(sorted(threads))}"] if threads else []
        discarded = sum(result.discarded for result in timed)
        parts += (
            [f"{count(discarded, 'sample')} discarded (clock throttled, or process suspended)"] if discarded else []
        )
        if any(len(set(result.groups)) > 1 for result in timed):
            parts.append("implementations ran in groups that fit in memory; ratios are formed inside a group")
    return "; ".join(parts)


def _interval(manifest: Manifest, timed: Sequence[Row]) -> str:
    confidence = manifest.experiment.confidence
    repeated = timed[0].facts.REPEATED if timed else ""
    texts = {
        "range": f"smallest and largest {repeated} (range: too few {repeated}s for a confidence interval)",
        "confidence": f"{confidence:.0%} confidence for the median over {repeated}s, by order statistics",
    }
    kinds = dict.fromkeys(row.derived.interval_kind for row in timed if row.derived.rounds > 1)
    return " or, where there are enough rounds, ".join(texts[kind] for kind in ("range", "confidence") if kind in kinds)


def _peaks(timed: Sequence[TimedResult]) -> str:
    peaks = [peak for result in timed for peak in result.peaks]
    if not peaks:
        return ""
    read = _rates(peak.read_bytes_per_s for peak in peaks)
    matrix = _rates(peak.matrix_flops_per_s for peak in peaks)
    how = " (the higher of reading and copying)" if any(peak.copy_bytes_per_s for peak in peaks) else ""
    in_order = _rates(peak.kernel_read_bytes_per_s for peak in peaks if peak.kernel_read_bytes_per_s)
    order = f" (in the order of the native kernels {in_order})" if in_order else ""
    return f"read {read} GB/s{how}{order}, matrix products {matrix} GFLOP/s, probed inside every round"


def _pages(timed: Sequence[Row]) -> str:
    """The memory pages that the system gave to the implementations' tensors."""
    shares = [row.session.huge_share for row in timed if row.session and row.session.huge_share is not None]
    if not shares:
        return ""
    if max(shares) == 0:
        return "small, for all implementations"
    percent = extent((100 * share for share in shares), lambda share: significant(share, 2))
    return f"{percent}% of the implementations' memory in huge pages"


def _paper(rows: Sequence[Row]) -> str:
    if not any(row.derived.paper_us is not None for row in rows):
        return ""
    stands_in = any(row.facts.implementation.startswith("vllm_") for row in rows)
    return " ".join([UNIT_OF_TABLE_3, NOT_COMPARABLE, *([VLLM_STANDS_IN] if stands_in else [])])


def _notes(manifest: Manifest, rows: Sequence[Row], columns: Columns) -> list[str]:
    """Notes of adapters and of the environment, each once."""
    notes = []
    for row in rows:
        note, name = one_line(row.facts.note), columns.name(row.facts.implementation)
        if note:
            notes.append(note if note.startswith((name, row.facts.label)) else f"{name}: {note}")
    about_torch = [one_line(machine.torch.note) for machine in manifest.machines.values() if machine.torch.note]
    return list(dict.fromkeys([*notes, *about_torch]))


def _constants(group: Group, varying: Sequence[str]) -> str:
    named = [name for name in AXES if name not in (*varying, *_IN_OTHER_TOPICS)]
    names = [name for name in named if group.axes.get(name) not in (None, AS_BEFORE.get(name))]
    return ", ".join(describe(group.axes, [name]) for name in names)


def _list(values: Iterable[Any]) -> str:
    return ", ".join(str(value) for value in dict.fromkeys(values))


def _rates(values: Iterable[float]) -> str:
    """Bytes or FLOPs per second, in 10^9."""
    return extent((value / 1e9 for value in values), lambda value: significant(value, 3))
