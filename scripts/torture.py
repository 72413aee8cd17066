"""Disturb ChunkBench on purpose and count the trials that it survives: `make torture`, or one part with
`make torture PART=kill`.

Each part makes trials until its time is over. Each part states its minutes; all parts take less than three hours.
The message of a failed trial says how to repeat it. The number of the first trial depends on the date, so every night
makes other trials.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from chunkbench.bench.environment.cpu import read_cpu
from tests.torture.parts import PARTS
from tests.torture.trials import Counts, Unavailable, torture

KEPT = Path("build/torture")
MOST_REASONS = 20
TRIALS_A_DAY = 100_000


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [part.name for part in PARTS]
    parser.add_argument("--part", action="append", choices=names, help="run only this part; may be given several times")
    parser.add_argument("--minutes", type=float, help="minutes of each part (default: those that the part names)")
    parser.add_argument("--seed", type=int, help="number of the first trial (default: from today's date)")
    parser.add_argument("--count", type=int, help="maximum number of trials of each part (default: as many as fit)")
    return parser.parse_args()


def row(name: str, counts: Counts) -> str:
    last = counts.first + counts.trials - 1
    failed = len(counts.failures)
    return (
        f"| {name} | {counts.first} to {last} | {counts.tried:,} | {counts.tried - failed:,} | {failed} "
        f"| {counts.seconds:.0f} s |"
    )


def main() -> int:
    options = arguments()
    seed = options.seed if options.seed is not None else (datetime.now(UTC).date().toordinal() - 730_000) * TRIALS_A_DAY
    print(f"{read_cpu().name}, {os.cpu_count()} CPUs, Linux {platform.release()}, Python {platform.python_version()}\n")
    print("| part | trials | tried | held | failed | time |\n| --- | --- | --- | --- | --- | --- |", flush=True)
    failures: dict[str, Counts] = {}
    stopped = False
    for part in PARTS:
        if stopped or (options.part and part.name not in options.part):
            continue
        counts, shown = Counts(seed), 0.0
        minutes = part.minutes if options.minutes is None else options.minutes
        try:
            for counts in torture(part, seed, 60 * minutes, options.count, KEPT):
                if sys.stderr.isatty() and time.monotonic() - shown > 1:
                    print(f"\r{row(part.name, counts)}", end="\r", file=sys.stderr, flush=True)
                    shown = time.monotonic()
        except Unavailable as reason:
            print(f"| {part.name} | unavailable: {reason} | | | | |", flush=True)
            continue
        except KeyboardInterrupt:
            stopped = True
        print(row(part.name, counts), flush=True)
        if counts.failures:
            failures[part.name] = counts
    for name, counts in failures.items():
        for number, why in list(counts.failures.items())[:MOST_REASONS]:
            print(f"\n{name}, trial {number}: {why.rstrip()}")
            print(f'Repeat it: make torture PART="{name}" SEED={number} COUNT=1. Its files: {KEPT}/')
        if len(counts.failures) > MOST_REASONS:
            print(f"\n{name}: {len(counts.failures) - MOST_REASONS} more trials failed")
    return 130 if stopped else int(bool(failures))


if __name__ == "__main__":
    raise SystemExit(main())
