"""Step times on A100 GPUs from printed numbers: Llama2-7B (ChunkAttention), OPT-13B (PagedAttention)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Literal, NamedTuple

import numpy as np

from chunkbench.llama import SHAPES
from chunkbench.report.printed import paged_attention, paper_rows, table3
from chunkbench.traffic.arrivals import LENGTHS
from chunkbench.workloads.replay.measured import non_negative
from chunkbench.workloads.replay.step_time import StepShape

PaperSystem = Literal["paged_attn", "paged_attn_star", "chunk_attn"]
"""Columns of Table 3. PagedAttn reads shared tokens like private ones; PagedAttn* has them
in memory once, but every sequence reads them; ChunkAttn reads them once for all."""

TABLE_3_BATCH = 32
TABLE_3_ANSWER = 32.5
"""Tokens of the answer in the mean of the 64 steps that Table 3 averages: of 1, 2, ..., 64."""

PEAK_FLOPS = 312e12
"""FLOP/s of an A100's tensor cores with 16-bit numbers, from NVIDIA's data sheet."""
SHARE_OF_PEAK = 0.6
"""What products of many rows and the attention of prompts are assumed to reach of it. Table 1 ends at 64 rows, where
the time is that of reading the weights: its 66 and 80 TFLOP/s would make prompts more than twice as slow."""

VOCABULARY = 32_000
"""Llama 2's, for the product that gives the logits."""

_SHAPE = SHAPES["llama2-7b"]
_HIDDEN = _SHAPE.hidden_size
_QKV_WEIGHTS = _HIDDEN * _SHAPE.qkv_size
_MLP_WEIGHTS = 3 * _HIDDEN * _SHAPE.intermediate_size
_OUTPUT_OF_QKV = _HIDDEN * _HIDDEN / _QKV_WEIGHTS
_LOGITS_OF_MLP = _HIDDEN * VOCABULARY / _MLP_WEIGHTS


@dataclass(frozen=True)
class PaperA100:
    """A step of Llama2-7B, 32 layers, 16-bit numbers, one A100.

    Printed: the QKV projection and the MLP at 1, 32 and 64 rows (Table 1; straight lines between them) and decode
    attention of 32 sequences (Table 3). Fitted: microseconds per token that attention reads for the first time, and for
    every further sequence that reads it (`attention_fit`). Assumed: at other batch sizes attention takes these times,
    too; the output projection takes a third of QKV's time, and the logits 0.97 of an MLP's, as their weights do; above
    64 rows products take the time of 64 rows or that of their FLOPs at `SHARE_OF_PEAK`, whichever is longer; attention
    of prompts takes that of its FLOPs. Left out, because the paper prints nothing: norms, rotary positions, sampling,
    and all time of the host, which `host_s` can add to each step.
    """

    system: PaperSystem
    host_s: float = 0.0
    """Seconds of each step outside of these kernels."""

    def seconds(self, shape: StepShape) -> float:
        layer_us = (
            self.products_us(shape.decoding + shape.prompt_tokens)
            + self.attention_us(shape)
            + _compute_us(4 * shape.prompt_reads * _HIDDEN)
        )
        logits_us = _LOGITS_OF_MLP * _product_us("mlp", _MLP_WEIGHTS, shape.sampled)
        return self.host_s + (_SHAPE.num_hidden_layers * layer_us + logits_us) * 1e-6

    def products_us(self, rows: int) -> float:
        """Microseconds of one layer's matrix products for this many tokens."""
        qkv, mlp = _product_us("qkv_projection", _QKV_WEIGHTS, rows), _product_us("mlp", _MLP_WEIGHTS, rows)
        return qkv * (1 + _OUTPUT_OF_QKV) + mlp

    def attention_us(self, shape: StepShape) -> float:
        """Microseconds of one layer's decode attention."""
        fit = attention_fit(self.system)
        return fit.once * shape.read_once + fit.again * shape.read_again

    @property
    def words(self) -> str:
        fit = attention_fit(self.system)
        host = f"; {self.host_s * 1e3:g} ms of the host in each step, fitted to Table 4" if self.host_s else ""
        return (
            f"Llama2-7B on the paper's A100: products from Table 1, decode attention fitted to Table 3 "
            f"({fit.once * 1e3:.2f} ns per token read first, {fit.again * 1e3:.2f} ns per further read, "
            f"within {fit.largest_error:.1%}); "
            f"assumed: {SHARE_OF_PEAK:.0%} of {PEAK_FLOPS / 1e12:.0f} TFLOP/s for prompts, "
            f"output projection and logits by their weights{host}"
        )


class AttentionFit(NamedTuple):
    """Microseconds of one layer's decode attention."""

    once: float
    """For each token that is read, the first time."""
    again: float
    """For each further sequence that reads it."""
    largest_error: float
    """Of a row of Table 3, as a share of it. For PagedAttn* and ChunkAttn: of the row with n_p = n_s = 1024."""


@cache
def attention_fit(system: PaperSystem) -> AttentionFit:
    """Fitted to the 12 rows of Table 3 by least squares of the errors as shares of the row.

    A constant part, tried as well, comes out as zero. All rows have 32 sequences, so Table 3 alone gives only the sum
    of one first and 31 further reads of a shared token; that its first read costs what a private token's does is
    assumed. ChunkAttn's token rate then grows by 1.31 from 16 to 96 sequences. The paper's Figure 4 says 1.45, but its
    times disagree with Table 3.
    """
    rows = [(n_p, n_s, us) for (n_p, n_s, column), us in table3().items() if column == system]
    printed = np.array([us for _, _, us in rows])
    private = np.array([TABLE_3_BATCH * (n_p - n_s + TABLE_3_ANSWER) for n_p, n_s, _ in rows])
    shared = np.array([n_s for _, n_s, _ in rows], np.float64)
    shares = np.stack([private + shared, (TABLE_3_BATCH - 1) * shared], axis=1) / printed[:, None]
    found = non_negative(shares, np.ones(len(printed)))
    return AttentionFit(float(found[0]), float(found[1]), float(np.abs(shares @ found - 1).max()))


@lru_cache(4096)
def _product_us(name: str, weights: int, rows: int) -> float:
    """Microseconds of a product of `rows` rows with a layer's matrices of this many weights."""
    if rows == 0:
        return 0.0
    sizes, latencies = _table1(name)
    printed = float(np.interp(rows, sizes, latencies))
    return printed if rows <= sizes[-1] else max(printed, _compute_us(2 * rows * weights))


@cache
def _table1(name: str) -> tuple[list[int], list[float]]:
    """Rows of the products in Table 1, and the microseconds of one layer's `name` for so many."""
    printed = [row for row in paper_rows("table1") if row["metric"] == "latency"]
    return [int(row["batch_size"]) for row in printed], [float(row[name]) for row in printed]


def _compute_us(flops: float) -> float:
    return flops / (PEAK_FLOPS * SHARE_OF_PEAK) * 1e6


PARAMETERS = 13e9


@dataclass(frozen=True)
class Opt13bA100:
    """A constant, and a time for each sequence that decodes, with which paged memory has the mean batches of Figure 13.

    In the mean a request is in as many steps as its answer has tokens. So batch = rate * answer * time from step to
    step. Assumed: all requests are served at the rates of that figure, and prompts take the time of their FLOPs, 2 for
    each parameter and token, at `SHARE_OF_PEAK`. The paper prints no step times. What others run at these rates is not
    fitted.
    """

    def seconds(self, shape: StepShape) -> float:
        constant, sequence = self._fit
        return constant + sequence * shape.decoding + _PROMPT_TOKEN_S * shape.prompt_tokens

    @cached_property
    def _fit(self) -> tuple[float, float]:
        """Seconds of a step, and for each sequence."""
        (few, few_s), (many, many_s) = map(_step, ("sharegpt", "alpaca"))
        sequence = (many_s - few_s) / (many - few)
        return few_s - sequence * few, sequence

    @property
    def words(self) -> str:
        constant, sequence = self._fit
        return (
            f"OPT-13B on an A100, fitted to the batches of PagedAttention's Figure 13: {constant * 1e3:.1f} ms and "
            f"{sequence * 1e3:.2f} ms per decoding sequence; assumed: {_PROMPT_TOKEN_S * 1e3:.2f} ms per prompt token"
        )


_PROMPT_TOKEN_S = 2 * PARAMETERS / (PEAK_FLOPS * SHARE_OF_PEAK)


def _step(traffic: str) -> tuple[float, float]:
    """Printed mean batch, and the seconds of a step without prompts that give it."""
    names = ("figure", "traffic", "manager")
    (row,) = (row for row in paged_attention() if tuple(row[name] for name in names) == ("13", traffic, "paged"))
    batch, per_s, lengths = float(row["value"]), float(row["rate"]) / 60, LENGTHS[traffic]
    prompts = per_s * lengths.prompt.mean * _PROMPT_TOKEN_S  # share of the time
    return batch, batch * (1 - prompts) / (per_s * lengths.answer.mean)
