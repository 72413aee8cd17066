"""The memory guard. It decides how much of the free memory a run may take, and groups implementations that fit in
it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.bench.workers.protocol import WORKER_BYTES

SLACK = 1.04
"""A session needs this many times the bytes of its K and V, because of work buffers and losses of the allocator."""
_OTHERS = 0.05
"""Share of the memory that is left to other processes."""


@dataclass(frozen=True)
class Grouping:
    """Groups of implementations that fit in memory together, and the implementations that do not fit even alone."""

    groups: tuple[tuple[str, ...], ...]
    too_large: Mapping[str, str]
    """Implementation -> the reason why it does not fit in memory, with the figures."""


def kv_bytes(point: AttentionPoint, seed: int, shares_storage: bool) -> int:
    """Predicted bytes of K and V at the end of a round. If `shares_storage`, shared tokens count once."""
    lengths = point.prompt_lengths(seed)
    completions = point.batch_size * (point.n_c + point.chunk_size)
    tokens = point.unique_prompt_tokens(seed) if shares_storage else sum(lengths)
    return int((tokens + completions) * point.token_bytes * SLACK)


def touched_bytes(point: AttentionPoint, seed: int, shares_storage: bool) -> int:
    """Distinct bytes of K and V that a decode of the first step reads."""
    tokens = point.unique_prompt_tokens(seed) if shares_storage else sum(point.prompt_lengths(seed))
    return (tokens + point.batch_size) * point.token_bytes


def usable(free: int) -> int:
    """The part of the free memory, in bytes, that the processes of a run or a server may take."""
    return int(free * (1 - _OTHERS))


def lacking(needed: int, room: int) -> str:
    """The reason why `needed` bytes do not fit into `room`, with the figures; empty if they fit."""
    reason = f"needs {gigabytes(needed)}, {gigabytes(room)} are available: {gigabytes(needed - room)} are missing"
    return reason if needed > room else ""


def room_of(free: int) -> int:
    """Bytes of K and V that fit into a worker.

    `free`: available bytes, plus the bytes that the worker already holds.
    """
    return max(0, usable(free) - WORKER_BYTES)


def probe_bytes(available: int) -> int:
    """Size of the read-bandwidth buffer: 512 MB, less on a small machine."""
    return max(1 << 26, min(1 << 29, available // 16)) // 4096 * 4096


def group(sizes: Mapping[str, int], order: Sequence[str], baseline: str, room: int) -> Grouping:
    """Make as few groups as possible, about equally large. The baseline is in every group if it fits, because ratios
    need the baseline.

    `sizes` are the bytes of each implementation, `room` the bytes that a group may use.
    """
    too_large = _too_large(sizes, order, room)
    fitting = [name for name in order if name not in too_large]
    if baseline in too_large:  # implementations without K and V read those of the baseline
        reason = f"it reads the K and V of {baseline}: {too_large[baseline]}"
        too_large |= {name: reason for name in fitting if not sizes[name]}
        fitting = [name for name in fitting if sizes[name]]
    everywhere = [baseline] if baseline in fitting else []
    base = sum(sizes[name] for name in everywhere)
    others = [name for name in fitting if name != baseline]
    # An implementation that fits only without the baseline still runs, but has no ratio.
    alone = [(name,) for name in others if base + sizes[name] > room]
    others = sorted((name for name in others if (name,) not in alone), key=lambda name: -sizes[name])
    groups: list[tuple[str, ...]] = []
    while others or (everywhere and not groups):
        count = len(groups) + 1
        members: list[list[str]] = [[*everywhere] for _ in range(count)]
        loads = [base] * count
        for name in others:
            smallest = loads.index(min(loads))
            members[smallest].append(name)
            loads[smallest] += sizes[name]
        groups = [tuple(sorted(names, key=lambda name: (name != baseline, order.index(name)))) for names in members]
        if max(loads) <= room:
            break
    return Grouping((*groups, *alone), too_large)


def one_by_one(sizes: Mapping[str, int], order: Sequence[str], room: int) -> Grouping:
    """One group for each implementation, for work without interleaved rounds."""
    too_large = _too_large(sizes, order, room)
    return Grouping(tuple((name,) for name in order if name not in too_large), too_large)


def _too_large(sizes: Mapping[str, int], order: Sequence[str], room: int) -> dict[str, str]:
    return {name: reason for name in order if (reason := lacking(sizes[name], room))}


def gigabytes(size: int) -> str:
    """A number of bytes as text, such as `1.2 GB`."""
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
