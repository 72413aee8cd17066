"""Functions that make judges of claims: bounds at several points, constants, and arithmetic on printed numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

from chunkbench.report.claims.evidence import Judge
from chunkbench.report.claims.judgement import ClaimVerdict, Figure, Judgement, Stated, absent, decided, held, listed
from chunkbench.report.printed import stated_token_rates, table3, table4


def largest(figures: Sequence[Figure]) -> Sequence[Figure]:
    """Put the deciding figure first: the figure with the largest value."""
    return [max(figures, key=lambda figure: figure.value), *figures]


def smallest(figures: Sequence[Figure]) -> Sequence[Figure]:
    """Put the deciding figure first: the figure whose interval has the lowest upper end."""
    return [min(figures, key=lambda figure: figure.high), *figures]


def bounded(
    found: Iterable[Figure],
    stated: Stated,
    says: str,
    needs: tuple[str, str],
    each: str = "{:.2f}",
    cause: str = "",
    cause_above: float = -inf,
    order: Callable[[Sequence[Figure]], Sequence[Figure]] | None = None,
) -> Judgement:
    """Judge a claim that states one bound for the figures of all points.

    says: words of the reason, with fields in braces. {each}: the list of figures. {it} and {where}: value and place of
    the deciding figure. {least}, {most} and {count}: minimum, maximum and number of the figures.
    needs: (the missing measurement, the experiment that makes it), for the reason if there are no figures.
    each: format of a value in the list.
    cause, cause_above: see `decided`.
    order: function that puts the deciding figure first. Without it, the worst figure decides.
    """
    figures = list(found)
    if not figures:
        return absent(*needs)
    values = [figure.value for figure in figures]
    first, *others = (order or stated.worst_first)(figures)
    ends = {"it": first.value, "where": first.place, "least": min(values), "most": max(values), "count": len(values)}
    return decided(first, stated, says.format(each=listed(figures, each), **ends), others, cause, cause_above)


def each_reached(
    figures: Sequence[tuple[Figure, Stated]], words: str, cause: str = "", cause_above: float = -inf
) -> Judgement:
    """Judge a claim that states a bound for each figure. The worst figure decides.

    The worst figure is the one with the worst verdict. Among wrong figures, those whose interval begins at or below
    `cause_above` are worse. Among figures that are still equal, the one with the smallest ratio of lower end to bound
    is the worst.
    """

    def goodness(pair: tuple[Figure, Stated]) -> tuple[int, bool, float]:
        figure, stated = pair
        good = stated.goodness(figure)
        return good, good > 0 or figure.low > cause_above, figure.low / stated.bound

    worst, stated = min(figures, key=goodness)
    return decided(worst, stated, words, [figure for figure, _ in figures], cause, cause_above)


def fixed(verdict: ClaimVerdict, reason: str, measured: float | None = None) -> Judge:
    """Make a judge that always gives this verdict, for claims that no measurement here decides."""
    judgement = Judgement(verdict, reason, measured)
    return lambda _: judgement


def equal(value: float, printed: float, decimals: int, reason: str) -> Judge:
    """Make a judge that compares a printed number with `value`, which follows from shapes or other printed numbers.

    `decimals`: number of decimals of the printed number; -3 if the text rounds to thousands.
    """
    return fixed(held(round(value, decimals) == printed), reason, value)


_MIB, _KIB = 2**20, 2**10


_GPT3, _OPT13B = 2 * 96 * 12288 * 2, 2 * 40 * 5120 * 2
"""Bytes of K and V of one token, for a model of 96 layers with hidden size 12288, and one of 40 layers with 5120."""
_BINARY, _DECIMAL = ((8 * 80 * unit - 175e9 * 2) / _GPT3 for unit in (2**30, 1e9))
"""Number of tokens that fit into 8 * 80 GB beside 175e9 weights of 2 bytes. A GB is 2^30 bytes or 10^9 bytes."""
_CHUNK, _PAGED = table3()[2048, 2048, "chunk_attn"], table3()[2048, 0, "paged_attn"]
_RATE = 32e6 / _CHUNK
_STAR_1024, _PAGED_1024 = table3()[1024, 1024, "paged_attn_star"], table3()[1024, 1024, "paged_attn"]
_SAVED, _UP_TO = 1 - _STAR_1024 / _PAGED_1024, 0.52
_CHUNK_4096, _VLLM_4096 = (
    float(table4()[4096, 0, system]["normalized_latency_ms_per_token"]) for system in ("chunk_llama", "vllm")
)
_HIGHEST = max(stated.tokens_per_s for stated in stated_token_rates("figure4"))
_SCALED = 687.74 * (2048 + 32) / 2048
"""Latency of Table 1 in microseconds, scaled from 2048 tokens to the mean context of 64 decode steps."""

JUDGES: Mapping[str, Judge] = {
    "S1-gpt3-kv": equal(_GPT3 / _MIB, 4.5, 1, "2 * 96 layers * 12288 * 2 bytes = 4.5 MiB"),
    "S1-capacity": equal(
        _BINARY,
        70_000,
        -4,
        f"(8 * 80 GB - 350 GB of weights) / 4.5 MiB: {_BINARY:,.0f} tokens if a GB is 2^30 bytes (the usual unit of "
        f"such cards), {_DECIMAL:,.0f} if it is 10^9 bytes",
    ),
    "PA-kv13b": equal(
        _OPT13B / _KIB,
        800,
        0,
        f"2 * 40 layers * 5120 * 2 bytes = 800 KiB; * 2048 = {_OPT13B * 2048 / 2**30:.2f} GiB",
    ),
    "X-figure4": fixed(
        held(_RATE > _HIGHEST),
        f"32 sequences / {_CHUNK} µs = {_RATE:,.0f} token/s; Figure 4 ends at {_HIGHEST:,.0f}. "
        f"We assume n_p = 2048 for Figure 4; with 4096 Table 3 gives {32e6 / table3()[4096, 4096, 'chunk_attn']:,.0f}, "
        "which is no disagreement",
        _RATE,
    ),
    "X-52": fixed(
        held(_SAVED > _UP_TO),
        f"Table 3 at 1024 tokens, all shared: 1 - {_STAR_1024} / {_PAGED_1024} = {_SAVED:.1%}; the text says up to "
        f"{_UP_TO:.0%}, which is what the table gives at 4096",
        _SAVED,
    ),
    "X-regression": fixed(
        held(_CHUNK_4096 > _VLLM_4096),
        f"Table 4 at n_p = 4096 with nothing shared: {_CHUNK_4096} ms a token for ChunkLlama, {_VLLM_4096} for vLLM: "
        f"{_CHUNK_4096 / _VLLM_4096:.3f} times",
        _CHUNK_4096 / _VLLM_4096,
    ),
    "X-unit": fixed(
        held(abs(_PAGED / _SCALED - 1) < 0.01),
        f"Table 1's 687.74 µs, scaled to the mean context of 64 decode steps, is {_SCALED:.1f} µs; Table 3 prints "
        f"{_PAGED}: within 1% of it in microseconds per decode step, a factor of 1000 above it in milliseconds",
        _PAGED / _SCALED,
    ),
}
