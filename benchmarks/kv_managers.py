"""How fast the manager with prefix caching by keys is, and which share of a trace's prompt blocks it finds.

    python benchmarks/kv_managers.py trace.jsonl --block-tokens 16 --blocks 1000000 --times 1 2 4

Sends every request of a Mooncake trace by itself: join, the whole prompt, the answer token by token, leave. `--times 2`
sends the trace twice, with other ids the second time, so that nothing is found from the first. The time per block must
not grow with the times. Peak memory is that of the process so far, trace included.
"""

from __future__ import annotations

import argparse
import math
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from chunkbench.kvcache.managers.hashed import HashedBlocks
from chunkbench.kvcache.text import SegmentText
from chunkbench.traces.formats import Trace, read_traffic


def texts(trace: Trace, times: int, answers: bool) -> Iterator[SegmentText]:
    """The trace as texts, so many times. Every answer has an id of its own."""
    ids = 1 + max(block for request in trace.requests for block in request.blocks)
    for turn in range(times):
        base = turn * (ids + len(trace.requests))
        for number, request in enumerate(trace.requests):
            size = trace.block_tokens
            rest = request.prompt_tokens - size * (len(request.blocks) - 1)
            segments = [(base + block, size) for block in request.blocks[:-1]]
            segments.append((base + request.blocks[-1], rest))
            if answers:
                segments.append((base + ids + number, request.answer_tokens))
            yield SegmentText(segments, request.prompt_tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="a file in Mooncake's format")
    parser.add_argument("--block-tokens", type=int, default=16)
    parser.add_argument("--blocks", type=int, default=1 << 40, help="blocks of the memory; without it: endless")
    parser.add_argument("--times", type=int, nargs="+", default=[1], help="how often the trace is sent")
    parser.add_argument("--no-answers", action="store_true", help="send the prompts alone")
    options = parser.parse_args()
    trace = read_traffic(options.trace)
    print(f"{'times':>5} {'s':>7} {'blocks touched':>14} {'us/block':>8} {'MiB':>6} {'found':>7} {'evicted':>10}")
    for times in options.times:
        manager = HashedBlocks(options.blocks, options.block_tokens)
        touched = prompts = found = 0
        started = time.perf_counter()
        for sequence, text in enumerate(texts(trace, times, not options.no_answers)):
            cached = manager.join(sequence, text, text.prompt)
            if cached is None or not manager.reach(sequence, text.prompt):
                raise SystemExit(f"{options.blocks} blocks are too few for a prompt of {text.prompt} tokens")
            for _ in range(text.total - text.prompt):
                if not manager.append([sequence]):
                    raise SystemExit(f"{options.blocks} blocks are too few for a text of {text.total} tokens")
            touched += len(manager.table(sequence))
            prompts += math.ceil(text.prompt / options.block_tokens)
            found += cached // options.block_tokens
            manager.leave(sequence)
        seconds = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        each = seconds / touched * 1e6
        print(
            f"{times:>5} {seconds:>7.1f} {touched:>14,} {each:>8.2f} {peak:>6.0f} {found / prompts:>7.1%}"
            f" {manager.evictions:>10,}"
        )


if __name__ == "__main__":
    main()
