"""Judges that several claims share: bounds at points, constants, arithmetic on printed numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

from chunkbench.report.claims.evidence import Judge
from chunkbench.report.claims.judgement import ClaimVerdict, Figure, Judgement, Stated, absent, decided, held, listed
from chunkbench.report.printed import stated_token_rates, table3, table4


def largest(figures: Sequence[Figure]) -> Sequence[Figure]:
    """The figures with the largest one in front, which decides."""
    return [max(figures, key=lambda figure: figure.value), *figures]


def smallest(figures: Sequence[Figure]) -> Sequence[Figure]:
    """The figures with the one in front whose interval ends lowest; it decides."""
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
    """The judgement of a claim that the figures of all points keep to a bound.

    says: words of the verdict; {each} lists the figures, {it} is the deciding figure and {where} its place, {least} and
        {most} are minimum and maximum of all {count} figures.
    needs: the missing measurement, and the experiment that makes it.
    each: format of a listed value.
    cause, cause_above: see `decided`.
    order: puts the deciding figure in front (`list`: keeps the order); None: the worst figure is in front.
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
    """The judgement of figures that each have to reach a bound of their own. The worst one decides: by its verdict,
    then, on the wrong side, by the sign of the effect, then by the low end of its interval over its bound.
    """

    def goodness(pair: tuple[Figure, Stated]) -> tuple[int, bool, float]:
        figure, stated = pair
        good = stated.goodness(figure)
        return good, good > 0 or figure.low > cause_above, figure.low / stated.bound

    worst, stated = min(figures, key=goodness)
    return decided(worst, stated, words, [figure for figure, _ in figures], cause, cause_above)


def fixed(verdict: ClaimVerdict, reason: str, measured: float | None = None) -> Judge:
    """The judge of a claim that follows from shapes or printed numbers, or that no experiment here can measure."""
    judgement = Judgement(verdict, reason, measured)
    return lambda _: judgement


def equal(value: float, printed: float, decimals: int, reason: str) -> Judge:
    """The judge of a printed number that follows from shapes or from other printed numbers. `decimals`: those of the
    printed number; -3 if it is rounded to thousands.
    """
    return fixed(held(round(value, decimals) == printed), reason, value)


_MIB, _KIB = 2**20, 2**10


_GPT3, _OPT13B = 2 * 96 * 12288 * 2, 2 * 40 * 5120 * 2
"""Bytes of K and V of a token: 96 layers with hidden size 12288, and 40 layers with 5120."""
_BINARY, _DECIMAL = ((8 * 80 * unit - 175e9 * 2) / _GPT3 for unit in (2**30, 1e9))
"""Tokens that fit into eight times 80 GB beside 175e9 weights of 2 bytes."""
_CHUNK, _PAGED = table3()[2048, 2048, "chunk_attn"], table3()[2048, 0, "paged_attn"]
_RATE = 32e6 / _CHUNK
_STAR_1024, _PAGED_1024 = table3()[1024, 1024, "paged_attn_star"], table3()[1024, 1024, "paged_attn"]
_SAVED, _UP_TO = 1 - _STAR_1024 / _PAGED_1024, 0.52
_CHUNK_4096, _VLLM_4096 = (
    float(table4()[4096, 0, system]["normalized_latency_ms_per_token"]) for system in ("chunk_llama", "vllm")
)
_HIGHEST = max(stated.tokens_per_s for stated in stated_token_rates("figure4"))
_SCALED = 687.74 * (2048 + 32) / 2048
"""Latency of Table 1, scaled to the mean context of 64 decode steps."""

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
