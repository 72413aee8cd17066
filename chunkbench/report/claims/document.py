"""The claims as a document: verdicts in a table, statements and reasons below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, get_args

from chunkbench.bench.analysis.derive import Row
from chunkbench.bench.store import Manifest
from chunkbench.bench.store.manifest import MachineFacts
from chunkbench.report.claims import Basis, Claim, ClaimVerdict
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
_BASES: tuple[Basis, ...] = ("timed", "counted", "replayed", "arithmetic")


def document(
    judged: Mapping[str, Sequence[Claim]],
    runs: Sequence[str],
    differing: Mapping[str, Mapping[str, ClaimVerdict]] = MappingProxyType({}),
) -> Output:
    """The document of claims; `judged`: machine -> all claims; `runs` are the names of the runs that decided.

    `differing`: claim -> run -> verdict, where single runs of one machine differ.
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


def by_machine(manifest: Manifest, rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """(Label of a machine, its rows) for each machine of a run; machines of one kind have one label."""
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(_label(manifest.machines.get(row.facts.machine)), []).append(row)
    return list(parts.items())


def _label(machine: MachineFacts | None) -> str:
    """The machine's name. Without the generation of the processor, its widest instruction set tells machines apart."""
    if machine is None or not machine.name:
        return "machine not recorded"
    widest = next((name for name in _WIDEST if name in machine.cpu.isa), "")
    known = machine.gpus or machine.cpu.generation or not widest
    return machine.name if known else f"{machine.name}, {_WIDEST[widest]}"


_WIDEST = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16", "avx512f": "AVX-512", "avx2": "AVX2"}


def summary(judged: Mapping[str, Sequence[Claim]]) -> str:
    """The headline of each machine."""
    if len(judged) == 1:
        return "".join(map(headline, judged.values()))
    return " ".join(f"{machine}: {headline(claims)}" for machine, claims in judged.items())


def headline(claims: Sequence[Claim]) -> str:
    """The verdicts on the paper's timed claims: what a reader wants to know first."""
    timed = [claim for claim in claims if claim.text == PAPER and claim.basis == "timed"]
    return f"Of the paper's {count(len(timed), 'timed claim')} {_tally(timed)}."


def _tally(claims: Sequence[Claim]) -> str:
    tally = Counter(claim.verdict for claim in claims)
    return ", ".join(_counted(verdict, tally[verdict]) for verdict in get_args(ClaimVerdict) if tally[verdict])


def _counts(judged: Mapping[str, Sequence[Claim]]) -> Table:
    """How many claims there are of each text, by what their verdict rests on; remarks are left out."""
    entries = []
    for machine, claims in judged.items():
        for text in (PAPER, "PagedAttention", "other texts"):
            texts_of = {PAPER, "PagedAttention"}
            own = [c for c in claims if (c.text == text if text in texts_of else c.text not in texts_of)]
            entries.append((machine, text, {basis: [c for c in own if c.basis == basis] for basis in _BASES}))

    def column(basis: Basis) -> Column[Any]:
        return Column(basis, lambda entry: _tally(entry[2][basis]) or NOTHING, align="left", wrap=True)

    named: tuple[Column[Any], ...] = (Column("machine", lambda entry: entry[0], align="left"),)
    texts: tuple[Column[Any], ...] = (Column("claims of", lambda entry: entry[1], align="left"),)
    return Table("What the verdicts rest on", (*named[: len(judged) > 1], *texts, *map(column, _BASES)), entries)


def _verdicts(machines: Sequence[str], known: Sequence[tuple[Claim, ...]]) -> list[Table]:
    """One table; of several machines two: a column for each machine, and what is the same on all machines."""
    if len(machines) == 1:
        return [Table("Verdicts", _columns(machines), known)]
    same = [
        claims
        for claims in known
        if all(claim.verdict == claims[0].verdict and not claim.of_machine for claim in claims)
    ]
    others = [claims for claims in known if claims not in same]
    everywhere = [claims[:1] for claims in same]
    return [
        Table("Verdicts by machine", _columns(machines), others),
        Table("Verdicts that need no machine, or a virtual clock", _columns(["verdict"]), everywhere),
    ]


def _columns(machines: Sequence[str]) -> tuple[Column[tuple[Claim, ...]], ...]:
    """Columns over the same claim of every machine."""

    def here(place: int, both: bool) -> Callable[[tuple[Claim, ...]], Cell]:
        def show(same: tuple[Claim, ...]) -> Cell:
            claim = same[place]
            text = WORDS[claim.verdict].word
            figure = measured(claim)
            shown = f"{text}, {figure}" if both and figure != NOTHING else text
            return Cell(NOTHING if both and claim.verdict == "not measured" else shown, EMPHASIS[claim.verdict])

        return show

    one = len(machines) == 1
    return (
        Column("claim", lambda same: same[0].id, align="left"),
        *((Column[tuple[Claim, ...]]("quantity", lambda same: same[0].quantity, align="left"),) if one else ()),
        *((Column[tuple[Claim, ...]]("here", lambda same: measured(same[0])),) if one else ()),
        Column("paper", lambda same: Cell(f"{same[0].paper}{_MARKS[same[0].read]}", "quiet")),
        *(
            Column[tuple[Claim, ...]]("verdict" if one else machine, here(place, not one), align="left")
            for place, machine in enumerate(machines)
        ),
    )


_MARKS = {"paper": "", "ours": "", "transcription": " (t)", "repository": " (r)", "discussion": " (d)", "notes": " (n)"}


def _statuses(judged: Mapping[str, Sequence[Claim]]) -> Iterator[str]:
    """A sentence for each verdict; those that need no machine once."""
    for place, (machine, claims) in enumerate(judged.items()):
        for claim in claims:
            if claim.verdict != "not measured" and (not place or claim.of_machine):
                yield f"{machine}: {_status(claim)}" if len(judged) > 1 and claim.of_machine else _status(claim)


def missing(judged: Mapping[str, Sequence[Claim]]) -> Iterator[str]:
    """A line for each experiment that would decide claims which no run has decided; then what nothing decides."""
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
    """The measured figure with its unit and, if it has one, its interval."""
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
