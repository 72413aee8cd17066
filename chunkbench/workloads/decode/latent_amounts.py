"""Bytes and FLOPs of the rows of latent attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from chunkbench.baselines.registry import LATENT_FORMS
from chunkbench.bench.experiment import AttentionPoint
from chunkbench.bench.runner.sessions import Amounts


def shared_prompt_tokens(point: AttentionPoint, seed: int) -> int:
    """Number of distinct prompt tokens that at least two sequences share."""
    paths = point.paths(seed)
    rows = Counter(segment.id for path in paths for segment in path)
    tokens = {segment.id: segment.tokens for path in paths for segment in path}
    return sum(tokens[segment] for segment, count in rows.items() if count > 1)


def latent_amounts(
    point: AttentionPoint, seed: int, implementation: str, reads_shared_once: bool, steps: Sequence[int]
) -> Amounts:
    """The amounts of a row at these steps. Every row reads and computes in its own form, so the amounts differ: the
    mixed form reads what is shared expanded, and the rest as latents. The row that chooses has no amounts, because its
    choice depends on the rates that it probes.

    With timed projections, the FLOPs of the products and the bytes of W_uk and W_uv count, too.
    """
    assert point.latent is not None
    shape, heads, batch, form = point.latent, point.heads, point.batch_size, LATENT_FORMS.get(implementation)
    if implementation == "mla_auto":
        return Amounts()
    paths = point.paths(seed)
    shared = shared_prompt_tokens(point, seed)
    ids = Counter(segment.id for path in paths for segment in path)
    shared_reads = sum(segment.tokens for path in paths for segment in path if ids[segment.id] > 1)
    prompts = sum(point.prompt_lengths(seed))
    unique_bytes, read_bytes, flops = [], [], []
    for step in steps:
        own = prompts - shared_reads + batch * step
        parts = ((shared, shared_reads, form in ("expanded", "both")), (own, own, form == "expanded"))
        element, extra_bytes, extra_flops = point.element_bytes, 0, 0
        if point.projections == "timed" and form != "expanded":
            extra_bytes = heads * shape.kv_rank * (shape.nope + shape.v) * element
            extra_flops = batch * heads * shape.projection_flops()
        plain, absorbed = shape.key_dim + shape.v, shape.width + shape.kv_rank
        widths = {"expanded": plain, "absorbed": absorbed}.get(str(form), plain + absorbed)
        q_and_out = batch * heads * (plain if point.projections == "timed" else widths) * element
        sizes = [
            (distinct, seen, shape.numbers(heads, expanded) * element, shape.flops(expanded))
            for distinct, seen, expanded in parts
        ]
        unique = sum(distinct * size for distinct, _, size, _ in sizes)
        read = unique if reads_shared_once else sum(seen * size for _, seen, size, _ in sizes)
        unique_bytes.append(unique + q_and_out + extra_bytes)
        read_bytes.append(read + q_and_out + extra_bytes)
        flops.append(sum(seen * heads * each for _, seen, _, each in sizes) + extra_flops)
    return Amounts(tuple(unique_bytes), tuple(read_bytes), tuple(flops))
