"""Judges of claims on constrained decoding, from the paper and the blog of SGLang: jump-forward with a compressed
finite-state machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.report.claims.evidence import Evidence, Judge, latency_ratio
from chunkbench.report.claims.judgement import Figure, Judgement, Stated, absent, held, judged
from chunkbench.report.claims.judges import bounded, smallest
from chunkbench.workloads.serving.constrained import (
    COMPILED,
    INTERLEAVED,
    JUMP,
    MASK,
    RETOKENIZE,
    equal_answers,
    speed_ratio,
)
from chunkbench.workloads.serving.metrics import METRICS

_CONFIDENCE = 0.95


def faster(evidence: Evidence, system: str, base: str, stated: Stated, words: str, cause: str) -> Judgement:
    """Judges the answers per second of `system` divided by those of `base`. Of the points with the most clients, the
    worst decides.
    """

    def busiest(figures: Sequence[Figure]) -> Sequence[Figure]:
        most = max(map(_clients, figures))
        return sorted(stated.worst_first(figures), key=lambda figure: _clients(figure) < most)

    needs = words, "constrained" if base == MASK else "constrained-all"
    found = _speeds(evidence, system, base)
    return bounded(found, stated, f"{words}: {{each}}", needs, cause=cause, cause_above=1, order=busiest)


def interleaved(evidence: Evidence, stated: Stated) -> Judgement:
    """Judges the answers per second of a server that fills templates, divided by those of a server with masks alone.
    The worst point decides."""
    found = _speeds(evidence, INTERLEAVED, MASK)
    tokens = [[METRICS["answer_tokens"].value(row.facts) or 0 for row in figure.rows] for figure in found]
    longer = ", ".join(f"{mine / base:.2f}" for mine, base in tokens)
    words = f"answers per second over those of masks alone: {{each}}; the answers have {longer} times as many tokens"
    return bounded(found, stated, words, ("answers that fill a template beside masks alone", "constrained-all"))


def retokenize(evidence: Evidence, stated: Stated) -> Judgement:
    """Judges the answers per second with jumps that tokenise the answer again, divided by those with plain jumps. The
    worst point decides."""
    found = _speeds(evidence, RETOKENIZE, JUMP, shares=True)
    times = [share for figure in found for share in METRICS["retokenizing_share"].known(figure.rows[0].facts)]
    alone = f"; the tokenizer alone takes {min(times):.1%} to {max(times):.1%} of the time" if times else ""
    needs = "jumps with and without answers that are tokenised again", "constrained"
    return bounded(found, stated, f"answers per second over those of jumps alone: {{each}}{alone}", needs)


def one_token(evidence: Evidence, stated: Stated) -> Judgement:
    """Judges a ratio: the number of tokens of an answer, divided by the number of steps that chose them. The server
    masks the logits and jumps over no tokens."""

    def figure(point: Group, system: str) -> Figure | None:
        rows = _rows(point, system)
        sizes = [METRICS[name].known(row.facts) for row in rows for name in ("answer_tokens", "answer_steps")]
        if not sizes or not all(sizes):
            return None
        return Figure.of_repeats([tokens / steps for tokens, steps in zip(*sizes, strict=True)], rows, _place(point))

    masks, jumps = (_sorted(evidence, partial(figure, system=name), _by_clients) for name in (MASK, JUMP))
    beside = f"; with jumps {min(map(_value, jumps)):.2f} to {max(map(_value, jumps)):.2f}" if jumps else ""
    words = f"tokens for each step of an answer with masks alone: {{least:.2f}} to {{most:.2f}}{beside}"
    return bounded(masks, stated, words, ("answers with masks alone", "constrained"))


def faster_than_free(evidence: Evidence, stated: Stated) -> Judgement:
    """Judges the time per token with jumps divided by the time without constraints, for several shares of forced bytes.
    The best share decides, because the claim says that jumps can be faster.
    """

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
    """Judges the share of greedy answers that stay the same if the server jumps over forced tokens. Without jumps, it
    masks the logits at every token. No source text states this share; the question is ours."""
    points = evidence.last(lambda point: point if _rows(point, MASK) else None, each_experiment=True)
    pairs = [rows for point in points for name in (JUMP, RETOKENIZE) if (rows := _rows(point, name, MASK))]
    counts = [(counted, rows) for rows in pairs if (counted := equal_answers(*rows)) is not None]
    if not counts:
        return absent("answers with jumps and with masks alone", "constrained")
    equal, compared = (sum(counted[place] for counted, _ in counts) for place in (0, 1))
    figure = Figure.counted(equal / compared, *(row for _, rows in counts for row in rows))
    reason = f"{equal} of {compared} answers with jumps equal those with masks alone, letter for letter; "
    reason += "no text claims that they do"
    return judged(held(equal == compared), reason, [figure])


def _speeds(evidence: Evidence, system: str, base: str, shares: bool = False) -> list[Figure]:
    """Answers per second of a system over those of another one, most clients first. shares: count points with a share
    of forced bytes, too.
    """

    def figure(point: Group) -> Figure | None:
        rows = _rows(point, system, base) if shares or point.axes["forced"] is None else []
        over = speed_ratio(rows[0], rows[1], _CONFIDENCE) if rows else None
        return Figure(*over, tuple(rows), _place(point)) if over else None

    return _sorted(evidence, figure, _by_clients)


def _clients(figure: Figure) -> int:
    return int(figure.rows[0].facts.axis("clients"))


def _by_clients(figure: Figure) -> int:
    return -_clients(figure)


def _value(figure: Figure) -> float:
    return figure.value


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
    # 4% of the time leave 96% of the answers per second.
    "FSM-retokenize": partial(retokenize, stated=Stated("at least", 0.96, 2)),
    "FSM-interleaved": partial(interleaved, stated=Stated("at least", 1.01, 2)),
    "FSM-one-token": partial(one_token, stated=Stated("at most", 1.0, 2)),
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
