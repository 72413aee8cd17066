"""Claims on latent attention with a shared prefix (TyphoonMLA, arXiv 2509.21081)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from chunkbench.latent import LATENTS
from chunkbench.report.claims.evidence import Evidence, Judge, latency_ratio
from chunkbench.report.claims.judgement import Figure, Judgement, Stated, absent, held, judged
from chunkbench.report.claims.judges import bounded, fixed, largest
from chunkbench.workloads.decode.latent_report import ABSORBED, MIXED, break_evens, latents

_NEEDS = "mla_mixed and mla_absorb_two_phase where a prompt is shared", "mla"


def attention(evidence: Evidence, stated: Stated) -> Judgement:
    """Latency of the absorbed form over that of the mixed one, with attention alone, where the gain is largest."""
    found = []
    for group, facts in latents(evidence.groups):
        place = f"with {facts.heads} heads, {facts.n_s} of {facts.n_p} tokens shared, batch {facts.batch_size}"
        figure = latency_ratio(group.rows, ABSORBED, MIXED, place)
        if figure is not None:
            found.append(figure)
    cause = "the paper measured a GPU, where the ratio of FLOPs to bytes is larger"
    return bounded(found, stated, "{it:.2f}x {where}, the largest of {count}", _NEEDS, "{:.2f}", cause, 1, largest)


def bound(evidence: Evidence) -> Judgement:
    shape = LATENTS["deepseek-v3"]
    value = shape.flops(False) / shape.flops(True)
    words = f"{shape.flops(False):,} and {shape.flops(True):,} FLOPs for a query head and a token: {value:.1f}"
    return Judgement(held(round(value, 1) == 3.4), words, value)


def break_even(evidence: Evidence) -> Judgement:
    """The measured number of sequences over the predicted one, of all series; right within a factor of 1.5."""
    series = [each for each in break_evens(evidence.groups) if each.measured is not None]
    if not series:
        return absent("both forms at neighbouring batch sizes, of which one favours each", "mla-break-even")
    found = [
        Figure.counted(
            (each.measured or 0) / each.predicted,
            *each.rows,
            place=f"({each.measured:.1f} measured, {each.predicted:.1f} predicted, {each.axes['heads']} heads)",
        )
        for each in series
    ]
    words = ", ".join(f"{figure.value:.2f} {figure.place}" for figure in found) + "; a factor of 1.5 counts as right"
    return judged("holds" if all(2 / 3 <= figure.value <= 1.5 for figure in found) else "different here", words, found)


JUDGES: Mapping[str, Judge] = {
    "TY-attention": partial(attention, stated=Stated("at least", 3.24, 2)),
    "TY-memory": fixed(
        "not measured", "it needs a served model: the paper's 3% is a share of a device's memory, weights included"
    ),
    "TY-bound": bound,
    "TY-break-even": break_even,
}
