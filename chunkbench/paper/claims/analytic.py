"""Claims that follow from shapes or from the paper's own numbers, without a measurement."""

from __future__ import annotations

from collections.abc import Mapping

from chunkbench.paper.claims.judgement import Judge, Judgement
from chunkbench.paper.printed import stated_token_rates, table3

_MIB, _KIB = 2**20, 2**10


def gpt3_token() -> Judgement:
    """96 layers, hidden size 12288."""
    size = 2 * 96 * 12288 * 2 / _MIB
    return Judgement("holds", "2 * 96 layers * 12288 * 2 bytes = 4.5 MiB", size)


def gpt3_capacity() -> Judgement:
    """Tokens that fit into eight times 80 GB beside 175e9 weights of 2 bytes."""
    token = 2 * 96 * 12288 * 2
    binary, decimal = ((8 * 80 * unit - 175e9 * 2) / token for unit in (2**30, 1e9))
    reason = (
        f"(8 * 80 GB - 350 GB of weights) / 4.5 MiB: {binary:,.0f} tokens if a GB is 2^30 bytes (the usual unit of "
        f"such cards), {decimal:,.0f} if it is 10^9 bytes"
    )
    return Judgement("holds", reason, binary)


def opt13b_token() -> Judgement:
    """40 layers, hidden size 5120."""
    token = 2 * 40 * 5120 * 2
    reason = f"2 * 40 layers * 5120 * 2 bytes = 800 KiB; * 2048 = {token * 2048 / 2**30:.2f} GiB"
    return Judgement("holds", reason, token / _KIB)


def figure4_disagrees() -> Judgement:
    rate = 32e6 / table3()[2048, 2048, "chunk_attn"]
    highest = max(stated.tokens_per_s for stated in stated_token_rates("figure4"))
    reason = (
        f"32 sequences / {table3()[2048, 2048, 'chunk_attn']} µs = {rate:,.0f} token/s; Figure 4 ends at {highest:,.0f}"
    )
    return Judgement("holds" if rate > highest else "does not hold", reason, rate)


def unit_of_table3() -> Judgement:
    stated = 687.74 * (2048 + 32) / 2048
    printed = table3()[2048, 0, "paged_attn"]
    reason = (
        f"Table 1's 687.74 µs, scaled to the mean context of 64 decode steps, is {stated:.1f} µs; Table 3 prints "
        f"{printed}: within 1% of it in microseconds per decode step, a factor of 1000 above it in milliseconds"
    )
    near = abs(printed / stated - 1) < 0.01
    return Judgement("holds" if near else "does not hold", reason, printed / stated)


JUDGES: Mapping[str, Judge] = {
    "S1-gpt3-kv": lambda _: gpt3_token(),
    "S1-capacity": lambda _: gpt3_capacity(),
    "PA-kv13b": lambda _: opt13b_token(),
    "X-figure4": lambda _: figure4_disagrees(),
    "X-unit": lambda _: unit_of_table3(),
}
