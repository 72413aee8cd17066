"""Shows claims as a document: a table of the verdicts, then statements and reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from chunkbench.bench.analysis.derive import Row, derive
from chunkbench.bench.store import Manifest, Run
from chunkbench.bench.store.manifest import MachineFacts
from chunkbench.report.claims import Basis, Claim, ClaimVerdict, MachineRun, claims_by_machine, differing
from chunkbench.report.claims.evidence import RunRows
from chunkbench.report.claims.judgement import WORDS
from chunkbench.report.model import Cell, Column, Emphasis, Output, Table
from chunkbench.report.numbers import NOTHING, count, ratio, significant

EMPHASIS: dict[ClaimVerdict, Emphasis] = {
    "holds": "best",
    "more than stated": "best",
    "does not hold": "failed",
    "different here": "noisy",
    "cannot tell": "noisy",
    "replayed": "quiet",
    "not measured": "absent",
}
PAPER = "ChunkAttention"
_TEXTS = (PAPER, "PagedAttention")
_BASES: tuple[Basis, ...] = ("timed", "counted", "replayed", "arithmetic")


def document(
    judged: Mapping[str, Sequence[Claim]],
    runs: Sequence[str],
    differing: Mapping[str, Mapping[str, ClaimVerdict]] = MappingProxyType({}),
) -> Output:
    """Show the claims as a document.

    `judged`: machine -> all claims. `runs`: names of the runs that were used. `differing`: claim -> run -> verdict, for
    claims on which runs of the same machine disagree.
    """
    between = [
        f"{name}: {', '.join(f'{WORDS[verdict].word} in {run}' for run, verdict in verdicts.items())}"
        for name, verdicts in differing.items()
    ]
    known = [same for same in zip(*judged.values(), strict=True) if any(c.verdict != "not measured" for c in same)]
    return Output(
        title="The paper's claims",
        headline=summary(judged),
        tables=(_counts(judged), *_verdicts(list(judged), known)),
        statuses=(*_statuses(judged), *missing(judged)),
        footer=(
            (
                "judged by",
                ", ".join(runs) or "no run: only claims that follow from shapes and from the paper's own numbers",
            ),
            *([("differs between runs", "; ".join(between))] if between else []),
            ("against", "claims about PagedAttn and PagedAttn* use the faster of this project's kernel and vLLM's"),
            (
                "read",
                "figures marked (t) are from a transcription, (r) from a repository, (d) from a discussion, "
                "(n) from notes on the text",
            ),
        ),
        headings=("Claims and reasons", "Columns", "How they were judged"),
        data={machine: [claim.as_dict() for claim in claims] for machine, claims in judged.items()}
        if len(judged) > 1
        else [claim.as_dict() for claims in judged.values() for claim in claims],
    )


def document_of(runs: Sequence[Run]) -> Output:
    """Judge the claims by these runs, and show them as a document. If two run folders have the same name, the name of
    the parent folder is added."""
    ways: tuple[Callable[[Path], str], ...] = (lambda path: path.name, lambda path: "/".join(path.parts[-2:]), str)
    namings = [[named(run.path) for run in runs] for named in ways]
    names = next((naming for naming in namings if len(set(naming)) == len(runs)), namings[-1])
    parts = [
        part for name, run in zip(names, runs, strict=True) for part in parts_of(name, run.manifest, derive(run.cases))
    ]
    return document(claims_by_machine(parts), names, differing(parts))


def parts_of(run: str, manifest: Manifest, rows: Sequence[Row]) -> list[MachineRun]:
    """The rows of a run, split by the machine that measured them."""
    by_label: dict[str, list[Row]] = {}
    for row in rows:
        by_label.setdefault(_label(manifest.machines.get(row.facts.machine)), []).append(row)
    return [MachineRun(label, run, RunRows(own)) for label, own in by_label.items()]


def _label(machine: MachineFacts | None) -> str:
    """The machine's name. Without the generation of the processor, its widest instruction set tells machines apart."""
    if machine is None or not machine.name:
        return "machine not recorded"
    widest = next((name for name in _WIDEST if name in machine.cpu.isa), "")
    known = machine.gpus or machine.cpu.generation or not widest
    return machine.name if known else f"{machine.name}, {_WIDEST[widest]}"


_WIDEST = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16", "avx512f": "AVX-512", "avx2": "AVX2"}


def summary(judged: Mapping[str, Sequence[Claim]]) -> str:
    """The headlines of all machines, as one text."""
    if len(judged) == 1:
        return "".join(map(headline, judged.values()))
    return " ".join(f"{machine}: {headline(claims)}" for machine, claims in judged.items())


def headline(claims: Sequence[Claim]) -> str:
    """A sentence that counts the verdicts on the paper's timed claims."""
    timed = [claim for claim in claims if claim.text == PAPER and claim.basis == "timed"]
    return f"Of the paper's {count(len(timed), 'timed claim')} {_tally(timed)}."


def _tally(claims: Sequence[Claim]) -> str:
    tally = Counter(claim.verdict for claim in claims)
    return ", ".join(_counted(verdict, tally[verdict]) for verdict in get_args(ClaimVerdict) if tally[verdict])


def _counts(judged: Mapping[str, Sequence[Claim]]) -> Table:
    """How many claims there are of each text, by what their verdict rests on; remarks are left out."""
    entries = []
    for machine, claims in judged.items():
        for text in (*_TEXTS, "other texts"):
            own = [c for c in claims if text == (c.text if c.text in _TEXTS else "other texts")]
            entries.append((machine, text, {basis: [c for c in own if c.basis == basis] for basis in _BASES}))

    def column(basis: Basis) -> Column[Any]:
        return Column(basis, lambda entry: _tally(entry[2][basis]) or NOTHING, align="left", wrap=True)

    named: tuple[Column[Any], ...] = (Column("machine", lambda entry: entry[0], align="left"),)
    texts: tuple[Column[Any], ...] = (Column("claims of", lambda entry: entry[1], align="left"),)
    return Table("What the verdicts rest on", (*named[: len(judged) > 1], *texts, *map(column, _BASES)), entries)


def _verdicts(machines: Sequence[str], known: Sequence[tuple[Claim, ...]]) -> list[Table]:
    """One table; of several machines two: a column for each machine, and what is the same on all machines."""
    if len(machines) == 1:
        return [Table("Verdicts", _COLUMNS, [claim for (claim,) in known])]
    same = [
        claims
        for claims in known
        if all(claim.verdict == claims[0].verdict and not claim.of_machine for claim in claims)
    ]
    columns: tuple[Column[tuple[Claim, ...]], ...] = (
        Column("claim", lambda claims: claims[0].id, align="left"),
        Column("paper", lambda claims: _printed(claims[0])),
        *(Column(machine, partial(_on_machine, place), align="left") for place, machine in enumerate(machines)),
    )
    return [
        Table("Verdicts by machine", columns, [claims for claims in known if claims not in same]),
        Table("Verdicts that need no machine, or a virtual clock", _COLUMNS, [claims[0] for claims in same]),
    ]


def _printed(claim: Claim) -> Cell:
    return Cell(f"{claim.paper}{_MARKS[claim.read]}", "quiet")


_MARKS = {"paper": "", "ours": "", "transcription": " (t)", "repository": " (r)", "discussion": " (d)", "notes": " (n)"}


def _verdict(claim: Claim) -> Cell:
    return Cell(WORDS[claim.verdict].word, EMPHASIS[claim.verdict])


def _on_machine(place: int, claims: tuple[Claim, ...]) -> Cell:
    """Verdict and figure of the claim on the machine with this place."""
    cell, figure = _verdict(claims[place]), measured(claims[place])
    if claims[place].verdict == "not measured":
        return replace(cell, text=NOTHING)
    return cell if figure == NOTHING else replace(cell, text=f"{cell.text}, {figure}")


_COLUMNS: tuple[Column[Claim], ...] = (
    Column("claim", lambda claim: claim.id, align="left"),
    Column("quantity", lambda claim: claim.quantity, align="left"),
    Column("here", lambda claim: measured(claim)),
    Column("paper", _printed),
    Column("verdict", _verdict, align="left"),
)


def _statuses(judged: Mapping[str, Sequence[Claim]]) -> Iterator[str]:
    """A sentence for each verdict; those that need no machine once."""
    for place, (machine, claims) in enumerate(judged.items()):
        for claim in claims:
            if claim.verdict != "not measured" and (not place or claim.of_machine):
                yield f"{machine}: {_status(claim)}" if len(judged) > 1 and claim.of_machine else _status(claim)


def missing(judged: Mapping[str, Sequence[Claim]]) -> Iterator[str]:
    """Lines on the claims without verdict: one for each experiment that would decide some of them, then one for each
    claim that no experiment decides."""
    everywhere = [same for same in zip(*judged.values(), strict=True) if all(c.verdict == "not measured" for c in same)]
    lacking: dict[str, list[str]] = {}
    for claim, *_ in everywhere:
        if claim.experiment:
            lacking.setdefault(claim.experiment, []).append(claim.id)
    for experiment, ids in lacking.items():
        yield f"Not measured: {', '.join(ids)}. `chunkbench run {experiment}` measures that."
    yield from (f"{claim.id} is not measured: {claim.reason}." for claim, *_ in everywhere if not claim.experiment)


def _status(claim: Claim) -> str:
    return f"{claim.id} ({claim.source}): {claim.statement}. {WORDS[claim.verdict].sentence}: {claim.reason}."


def _counted(verdict: ClaimVerdict, number: int) -> str:
    words = WORDS[verdict]
    return f"{number} {words.word if number == 1 else words.several}"


def measured(claim: Claim) -> str:
    """The figure of a claim as text, with its unit. The interval follows, if the figure has one."""
    figures = [figure for figure in (claim.low, claim.high) if figure is not None]
    if claim.measured is None and not figures:
        return NOTHING
    unit = claim.unit if claim.unit in ("x", "%") else f" {claim.unit}"
    low, high = (_figure(figure, claim.unit) for figure in (claim.low or 0.0, claim.high or 0.0))
    if claim.measured is None:
        return f"{low} to {high}{unit}"
    text = f"{claim.bound} {_figure(claim.measured, claim.unit)}{unit}".lstrip()
    return text if not figures or claim.low == claim.high else f"{text} ({low} to {high})"


def _figure(value: float, unit: str) -> str:
    """A figure without its unit, with as many digits as the unit needs."""
    if unit == "x":
        return ratio(value)
    if unit == "%":
        return f"{100 * value:.0f}" if abs(value) >= 0.0995 else f"{100 * value:.1f}"
    return f"{value:,.0f}" if value == round(value) or value >= 1000 else significant(value, 3)
