"""Shows how often a verdict of `regress` is right: applies the current and the former stopping rule to the same
recorded pairs.

    python benchmarks/regress_proof.py      prints the numbers of docs/regression.md

`results/recorded/gate-proofs/pairs.csv` has a line for each pair of processes, which `regress` measured. A line holds
the ratio HEAD / BASE (median over the pair's rounds), the seconds since the first pair began, and the number of CPUs
that other programs used. A run measured one case until both rules gave a verdict. In some cases the code is unchanged:
a native kernel, `examples/my-kernel` in PyTorch, and a kernel in plain Python. In the other cases, the calls of
`examples/my-kernel` take 10% or 20% longer.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from chunkbench.report.compare.rank_intervals import centre
from chunkbench.report.compare.regress import looks
from chunkbench.report.compare.verdicts import Verdict, judge

PAIRS = Path(__file__).parents[1] / "results" / "recorded" / "gate-proofs" / "pairs.csv"
THRESHOLD, ERROR, FEWEST, LIMIT_S = 0.05, 0.01, 12, 120.0
LOADED = 0.2
"""A run counts as loaded if other programs used at least this many CPUs on average."""


class Run(NamedTuple):
    shifts: Sequence[float]
    """`[pairs]`: logarithm of the pair's ratio HEAD / BASE."""
    seconds: Sequence[float]
    """`[pairs]`: seconds from the start of the run to the end of the pair."""
    foreign_cpus: float


class Decision(NamedTuple):
    """The verdict of a stopping rule on a run, and the seconds that the run took until then."""

    verdict: Verdict
    seconds: float


def present(run: Run) -> Decision:
    """The current stopping rule. The first test comes after `FEWEST` pairs. Each further test comes when the number of
    pairs has about doubled. With n tests, each may be wrong with the probability `ERROR` / n."""
    schedule = looks(FEWEST, run.seconds[FEWEST - 1], LIMIT_S)
    verdict: Verdict = "inconclusive"
    count = FEWEST
    for look_s in schedule:
        count = max(FEWEST, sum(second <= look_s for second in run.seconds))
        shift = centre(run.shifts[:count], 1 - ERROR / len(schedule))
        verdict = judge(shift.low, shift.high, THRESHOLD)
        if verdict != "inconclusive":
            break
    return Decision(verdict, run.seconds[count - 1])


def former(run: Run) -> Decision:
    """The former stopping rule. The first test comes after twelve pairs. If it finds a change, a second test comes
    twelve pairs later. Another test also follows a test that is inconclusive with a shift above half the threshold.

    The verdict is a change only if each part of the pairs also shows this change. The parts are the two halves of the
    first twelve pairs, and later each further twelve pairs.
    """
    parts: list[float] = []
    while True:
        count = FEWEST * (1 + len(parts))
        shift = centre(run.shifts[:count], 1 - ERROR / 3)
        verdict = judge(shift.low, shift.high, THRESHOLD)
        agreeing = parts or [median(run.shifts[: count // 2]), median(run.shifts[count // 2 : count])]
        if verdict in ("slower", "faster") and any(judge(part, part, THRESHOLD) != verdict for part in agreeing):
            verdict = "inconclusive"
        unconfirmed = verdict in ("slower", "faster") and not parts
        near = verdict == "inconclusive" and abs(shift.value) > math.log1p(THRESHOLD / 2)
        now_s = run.seconds[count - 1]
        too_late = bool(parts) and now_s * (1 + 1.1 / (1 + len(parts))) > LIMIT_S
        if not (unconfirmed or near) or too_late or count + FEWEST > len(run.shifts):
            return Decision(verdict, now_s)
        parts.append(median(run.shifts[count : count + FEWEST]))


def main() -> None:
    lines: dict[tuple[str, str], dict[str, list[dict[str, str]]]] = {}
    with PAIRS.open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            lines.setdefault((line["kind"], line["slowed"]), {}).setdefault(line["run"], []).append(line)
    print("| code | slower by | runs (loaded) | former rule | seconds | current rule | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for (kind, slowed), by_run in lines.items():
        runs = [
            Run(
                [math.log(float(pair["ratio"])) for pair in pairs],
                [float(pair["seconds"]) for pair in pairs],
                fmean(float(pair["foreign_cpus"]) for pair in pairs),
            )
            for pairs in by_run.values()
        ]
        loaded = sum(run.foreign_cpus >= LOADED for run in runs)
        cells = [kind, f"{slowed}%", f"{len(runs)} ({loaded})"]
        for rule in (former, present):
            decisions = [rule(run) for run in runs]
            counts = Counter(decision.verdict for decision in decisions)
            seconds = [decision.seconds for decision in decisions]
            cells.append(", ".join(f"{number} `{verdict}`" for verdict, number in counts.most_common()))
            cells.append(f"{median(seconds):.0f}, at most {max(seconds):.0f}")
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
