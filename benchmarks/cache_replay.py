"""How long the manager with prefix caching takes for a trace, one request at a time, and the memory of the process.

    python benchmarks/cache_replay.py conversation_trace.jsonl --block-tokens 16 --blocks 1000000

Every request by itself: allocate, compute the prompt, append the answer token by token, free. Two revisions are
compared in turns, each in an environment of its own; what is found and evicted must be equal.
"""

from __future__ import annotations

import argparse
import resource
from pathlib import Path
from time import perf_counter

from chunkbench.traces.replayed_files import read_replayed
from chunkbench.workloads.replay.registry import KINDS, Memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="a file that `chunkbench traces` reads")
    parser.add_argument("--manager", default="paged_prefix")
    parser.add_argument("--block-tokens", type=int, default=16)
    parser.add_argument("--blocks", type=int, default=1 << 40, help="blocks of the memory; without it: endless")
    options = parser.parse_args()
    texts = [request.text for request in read_replayed(options.trace, 1 << 40)]
    size = options.block_tokens
    manager = KINDS[options.manager].make(Memory(options.blocks * size, size, size, max(t.total for t in texts)))
    found, started = 0, perf_counter()
    for sequence, text in enumerate(texts):
        cached = manager.allocate(sequence, text, text.prompt)
        if cached is None or not manager.extend(sequence, text.prompt):
            raise SystemExit(f"{options.blocks} blocks are too few for a prompt of {text.prompt} tokens")
        for _ in range(text.total - text.prompt):
            if not manager.append([sequence]):
                raise SystemExit(f"{options.blocks} blocks are too few for a text of {text.total} tokens")
        manager.free(sequence)
        found += cached
    seconds = perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    share = found / sum(text.prompt for text in texts)
    print(f"{len(texts):,} requests: {seconds:.2f} s, {peak:.0f} MiB, {share:.4%} found, {manager.evictions:,} evicted")


if __name__ == "__main__":
    main()
