"""Claims on constrained decoding: jump-forward with a compressed finite-state machine (SGLang's paper and blog)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.report.claims.evidence import Evidence, Judge, latency_ratio
from chunkbench.report.claims.judgement import Figure, Judgement, Stated, absent, held, judged
from chunkbench.report.claims.judges import bounded, smallest
from chunkbench.workloads.serving.constrained import COMPILED, JUMP, MASK, RETOKENIZE, equal_answers, speed_ratio
from chunkbench.workloads.serving.metrics import METRICS

_CONFIDENCE = 0.95


def faster(evidence: Evidence, system: str, base: str, stated: Stated, words: str, cause: str) -> Judgement:
    """Answers per second of a system over those of another one; the point with the most clients decides."""

    def figure(point: Group) -> Figure | None:
        rows = _rows(point, system, base) if point.axes["forced"] is None else []
        over = speed_ratio(rows[0], rows[1], _CONFIDENCE) if rows else None
        return Figure(*over, tuple(rows), _place(point)) if over else None

    found = _sorted(evidence, figure, lambda figure: -figure.rows[0].facts.axis("clients"))
    needs = words, "constrained" if base == MASK else "constrained-all"
    return bounded(found, stated, f"{words}: {{each}}", needs, cause=cause, cause_above=1, order=list)


def retokenize(evidence: Evidence, stated: Stated) -> Judgement:
    """Share of the time that tokenising answers again takes; the largest over arrival seeds and points decides."""

    def figure(point: Group) -> Figure | None:
        rows = _rows(point, RETOKENIZE)
        shares = [share for row in rows for share in METRICS["retokenizing_share"].known(row.facts)]
        return Figure(max(shares), min(shares), max(shares), tuple(rows), _place(point)) if shares else None

    found = _sorted(evidence, figure, lambda figure: -figure.value)
    return bounded(found, stated, "{each}", ("answers that are tokenised again", "constrained"), "{:.1%}")


def faster_than_free(evidence: Evidence, stated: Stated) -> Judgement:
    """Time per token with jumps over the time without a constraint, for each share of bytes without a choice."""

    def figure(point: Group) -> Figure | None:
        rows = _rows(point, RETOKENIZE, "unconstrained") if point.axes["forced"] is not None else []
        return latency_ratio(point.rows, RETOKENIZE, "unconstrained", f"at {point.axes['forced']}%") if rows else None

    found = _sorted(evidence, figure, lambda figure: figure.rows[0].facts.axis("forced"))
    faster = [figure.rows[0].facts.axis("forced") for figure in found if figure.high < 1]
    words = "time per token over that of unconstrained answers: {each}"
    words += f"; jumps are faster from {faster[0]}% of forced bytes on" if faster else ""
    needs = "jumps and unconstrained answers at several shares of forced bytes", "constrained-share"
    return bounded(found, stated, words, needs, order=smallest)


def same(evidence: Evidence) -> Judgement:
    """Number of greedy answers that are equal with jumps and with masks alone."""
    points = evidence.last(lambda point: point if _rows(point, MASK) else None, each_experiment=True)
    pairs = [rows for point in points for name in (JUMP, RETOKENIZE) if (rows := _rows(point, name, MASK))]
    counts = [(counted, rows) for rows in pairs if (counted := equal_answers(*rows)) is not None]
    if not counts:
        return absent("answers with jumps and with masks alone", "constrained")
    equal, compared = (sum(counted[place] for counted, _ in counts) for place in (0, 1))
    figure = Figure.counted(equal / compared, *(row for _, rows in counts for row in rows))
    reason = f"{equal} of {compared} answers with jumps equal those with masks alone, letter for letter"
    return judged(held(equal == compared), reason, [figure])


def _sorted(
    evidence: Evidence, figure: Callable[[Group], Figure | None], rank: Callable[[Figure], float]
) -> list[Figure]:
    """The figures of all points of all experiments, sorted by rank."""
    return sorted(evidence.last(figure, each_experiment=True), key=rank)


def _rows(point: Group, *systems: str) -> list[Row]:
    """The rows of these systems at a point with closed-loop clients; empty if any row is missing."""
    measured = point.axes["clients"] is not None and all(name in point.rows for name in systems)
    return [point.rows[name] for name in systems] if measured else []


def _place(point: Group) -> str:
    clients, forced = point.axes["clients"], point.axes["forced"]
    return f"at {clients} client{'s' * (clients > 1)}" + ("" if forced is None else f", {forced}% forced")


JUDGES: Mapping[str, Judge] = {
    "FSM-throughput": partial(
        faster,
        system=RETOKENIZE,
        base=MASK,
        stated=Stated("at least", 1.6, 1),
        words="answers per second over those of masks alone",
        cause="a smaller model on this machine: the gain follows from the times of steps with one row and with many",
    ),
    "FSM-retokenize": partial(retokenize, stated=Stated("at most", 0.04, 2)),
    "FSM-preprocess": partial(
        faster,
        system=JUMP,
        base=COMPILED,
        stated=Stated("at least", 2.4, 1),
        words="answers per second where a constraint is compiled once, over those where each request compiles it",
        cause="the automaton of this JSON format compiles in tens of milliseconds",
    ),
    "FSM-faster-than-free": partial(faster_than_free, stated=Stated("at most", 0.99, 2)),
    "FSM-same": same,
}
