"""The part of an engine's step that continues beam searches: beams that go on keep their sequence or become forks."""

from __future__ import annotations

import torch

from chunkbench.server.engine.beams import Beam, likeliest
from chunkbench.server.engine.cache import EngineCache
from chunkbench.server.engine.errors import RequestFailed
from chunkbench.server.engine.request import BeamGroup, Finish, Generated, Sequence
from chunkbench.server.engine.sampling import without_early_ends
from chunkbench.server.scheduling import Scheduler


def likeliest_of(logits: torch.Tensor, sequences: list[Sequence]) -> dict[int, Beam]:
    """The likeliest next tokens of the rows that belong to beams."""
    of_beams = {row: one.group for row, one in enumerate(sequences) if one.group is not None}
    if not of_beams:
        return {}
    rows = list(of_beams)
    allowed = without_early_ends(logits[rows], [sequences[row] for row in rows])
    most = max(group.search.candidates for group in of_beams.values())
    found = likeliest(allowed, most)
    return {row: Beam(one[: of_beams[row].search.candidates]) for row, one in zip(rows, found, strict=True)}


def advance(group: BeamGroup, cache: EngineCache, scheduler: Scheduler[Sequence]) -> list[Generated]:
    """Continue the beams of a group by one token, if all of them were computed. Returns the tokens of all answers
    at the end of the search."""
    if not group.live or len(group.rows) < len(group.live):
        return []
    parents = group.live
    going = group.search.advance([group.rows[beam] for beam in parents])
    group.rows, parents[0].others = {}, []
    if not going:
        group.live = []
        scheduler.drop(parents)
        return _answers(group)
    kept = {one.beam for one in going}
    scheduler.drop([beam for place, beam in enumerate(parents) if place not in kept])
    busy = {parents[place] for place in kept}
    free = [slot for slot in group.slots if slot not in busy]
    group.live = []
    for one in going:
        parent = parents[one.beam]
        beam = parent if one.beam in kept else free.pop()
        kept.discard(one.beam)
        group.live.append(beam)
    for one, beam in zip(going, group.live, strict=True):
        parent = parents[one.beam]
        if beam is not parent:
            beam.tokens[:] = parent.tokens
            if not cache.fork(parent.arrival, beam.arrival, beam.text):
                scheduler.put_back(group.slots[0])
                return []
            scheduler.branch(parent, beam)
    for one, beam in zip(going, group.live, strict=True):
        beam.tokens.append(one.token)
    return []


def _answers(group: BeamGroup) -> list[Generated]:
    """The tokens of all answers of a search that has ended."""
    generated = []
    for slot, (_, tokens) in zip(group.slots, group.search.finished, strict=True):
        finish: Finish = "stop" if tokens[-1] in slot.ends else "length"
        cached = group.slots[0].cached_tokens
        generated += [Generated(slot.request.id, token, None, cached) for token in tokens[:-1]]
        generated.append(Generated(slot.request.id, tokens[-1], finish, cached))
    return generated


def fail(
    group: BeamGroup, failure: RequestFailed, cache: EngineCache, scheduler: Scheduler[Sequence]
) -> list[RequestFailed]:
    """End a beam search, one of whose beams cannot be computed."""
    live, group.live = group.live, []
    for beam in live:
        cache.forget(beam.arrival)
    scheduler.drop(live)
    if not live:  # another beam has failed before
        return []
    failures = [RequestFailed(slot.request.id, str(failure), failure.asked) for slot in group.slots]
    for one in failures:
        one.__cause__ = failure.__cause__
    return failures
