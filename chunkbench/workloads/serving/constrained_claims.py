"""Claims on constrained decoding: jump-forward with a compressed finite-state machine (SGLang's paper and blog)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from chunkbench.analysis.derive import Row
from chunkbench.analysis.ratio import ratio
from chunkbench.paper.claims.evidence import Evidence
from chunkbench.paper.claims.judgement import Figure, Judge, Judgement, Stated, absent, decided, judged
from chunkbench.workloads.serving.metrics import METRICS
from chunkbench.workloads.serving.speed_ratio import (
    COMPILED,
    JUMP,
    MASK,
    RETOKENIZE,
    equal_answers,
    speed_ratio,
)

_CONFIDENCE = 0.95
_HERE = "a smaller model on this machine: the gain follows from the times of steps with one row and with many"


def throughput(evidence: Evidence) -> Judgement:
    """JSONs per second with jumps over those with masks alone; the largest number of clients decides."""
    words = "answers per second over those of masks alone"
    return _faster(evidence, RETOKENIZE, MASK, Stated("at least", 1.6, 1), words, _HERE)


def preprocess(evidence: Evidence) -> Judgement:
    """JSONs per second where a constraint is compiled once, over those where each request compiles it."""
    words = "answers per second where a constraint is compiled once, over once for each request"
    cause = "the automaton of this JSON compiles in tens of milliseconds"
    return _faster(evidence, JUMP, COMPILED, Stated("at least", 2.4, 1), words, cause)


def retokenize(evidence: Evidence) -> Judgement:
    """Share of the time that tokenising answers again takes; the largest decides."""
    figures = []
    for axes, rows in _points(evidence):
        shares = METRICS["retokenizing_share"].known(rows[RETOKENIZE].facts) if RETOKENIZE in rows else []
        if shares:
            figures.append((axes, Figure(max(shares), min(shares), max(shares), (rows[RETOKENIZE],))))
    if not figures:
        return absent("answers that are tokenised again", "constrained")
    figures.sort(key=lambda entry: -entry[1].value)
    words = ", ".join(f"{figure.value:.1%} at {_place(axes)}" for axes, figure in figures)
    return decided(figures[0][1], Stated("at most", 0.04, 2), words, [figure for _, figure in figures])


def faster_than_free(evidence: Evidence) -> Judgement:
    """Time per token with jumps over the time without a constraint, by the share of bytes without a choice."""
    found = []
    for axes, rows in _points(evidence):
        if axes["forced"] is not None and RETOKENIZE in rows and "unconstrained" in rows:
            over = ratio(rows[RETOKENIZE].facts, rows["unconstrained"].facts, _CONFIDENCE)
            if over is not None:
                figure = Figure(over.value, over.low, over.high, (rows[RETOKENIZE], rows["unconstrained"]))
                found.append((axes["forced"], figure))
    if not found:
        return absent("jumps and unconstrained answers at several shares of forced bytes", "constrained-share")
    found.sort(key=lambda entry: entry[0])
    words = ", ".join(f"{figure.value:.2f} at {forced}%" for forced, figure in found)
    faster = [forced for forced, figure in found if figure.high < 1]
    best = min((figure for _, figure in found), key=lambda figure: figure.value)
    begin = f"; faster from {faster[0]}% of forced bytes on" if faster else ""
    reason = f"time per token over that of unconstrained answers: {words}{begin}"
    return decided(best, Stated("at most", 0.99, 2), reason, [figure for _, figure in found])


def same(evidence: Evidence) -> Judgement:
    """Answers that jumping leaves as they are, greedy."""
    equal, compared, used = 0, 0, list[Row]()
    for _, rows in _points(evidence):
        for name in (JUMP, RETOKENIZE):
            counted = equal_answers(rows[name], rows[MASK]) if name in rows and MASK in rows else None
            if counted is not None:
                equal, compared = equal + counted[0], compared + counted[1]
                used += [rows[name], rows[MASK]]
    if not compared:
        return absent("answers with jumps and with masks alone", "constrained")
    share = equal / compared
    figure = Figure(share, share, share, tuple(used))
    reason = f"{equal} of {compared} answers with jumps are those of masks alone, letter for letter"
    return judged("holds" if equal == compared else "does not hold", reason, [figure])


def _faster(evidence: Evidence, system: str, base: str, stated: Stated, words: str, cause: str) -> Judgement:
    figures = []
    for axes, rows in _points(evidence):
        over = speed_ratio(rows[system], rows[base], _CONFIDENCE) if system in rows and base in rows else None
        if over is not None and axes["forced"] is None:
            figures.append((axes, Figure(*over, (rows[system], rows[base]))))
    if not figures:
        return absent(words, "constrained" if base == MASK else "constrained-all")
    figures.sort(key=lambda entry: -entry[0]["clients"])
    listed = ", ".join(f"{figure.value:.2f} at {_place(axes)}" for axes, figure in figures)
    worst = figures[0][1]
    reason = f"{words}: {listed}"
    return decided(worst, stated, reason, [figure for _, figure in figures], cause if worst.value > 1 else "")


def _points(evidence: Evidence) -> Iterator[tuple[dict[str, Any], dict[str, Row]]]:
    """Axes and rows of points with closed-loop clients; where runs of an experiment share one, the last run counts."""
    found = {}
    for group in evidence.groups:
        if group.axes.get("clients") is not None:
            found[f"{group.axes} {next(iter(group.rows.values())).facts.experiment}"] = group
    return ((dict(group.axes), dict(group.rows)) for group in found.values())


def _place(axes: dict[str, Any]) -> str:
    clients = axes["clients"]
    forced = "" if axes["forced"] is None else f", {axes['forced']}% forced"
    return f"{clients} client{'s' * (clients > 1)}{forced}"


JUDGES: Mapping[str, Judge] = {
    "FSM-throughput": throughput,
    "FSM-retokenize": retokenize,
    "FSM-preprocess": preprocess,
    "FSM-faster-than-free": faster_than_free,
    "FSM-same": same,
}
