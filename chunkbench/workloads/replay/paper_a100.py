"""Step times on A100 GPUs, derived from printed numbers: Llama2-7B (ChunkAttention), OPT-13B (PagedAttention)."""

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
"""Columns of Table 3. PagedAttn reads shared tokens like private ones. PagedAttn* holds shared tokens once, but every
sequence reads them. ChunkAttn reads shared tokens once for all sequences.
"""

TABLE_3_BATCH = 32
TABLE_3_ANSWER = 32.5
"""Mean number of answer tokens over the 64 steps that Table 3 averages (1, 2, ..., 64)."""

PEAK_FLOPS = 312e12
"""FLOP/s of an A100's tensor cores with 16-bit numbers, from NVIDIA's data sheet."""
SHARE_OF_PEAK = 0.6
"""Assumed share of `PEAK_FLOPS` that the attention of prompts and matrix products of many rows reach.

Table 1 cannot give this share. The table ends at 64 rows, where the time to read the weights dominates.
"""

VOCABULARY = 32_000
"""Size of Llama 2's vocabulary, for the product that gives the logits."""

_SHAPE = SHAPES["llama2-7b"]
_HIDDEN = _SHAPE.hidden_size
_QKV_WEIGHTS = _HIDDEN * _SHAPE.qkv_size
_MLP_WEIGHTS = 3 * _HIDDEN * _SHAPE.intermediate_size
_OUTPUT_OF_QKV = _HIDDEN * _HIDDEN / _QKV_WEIGHTS
_LOGITS_OF_MLP = _HIDDEN * VOCABULARY / _MLP_WEIGHTS


@dataclass(frozen=True)
class PaperA100:
    """Step times of Llama2-7B with 32 layers and 16-bit numbers on one A100.

    Printed: times of the QKV projection and the MLP at 1, 32 and 64 rows (Table 1). Times between these rows are
    interpolated linearly.

    Fitted to decode attention with 32 sequences (Table 3): the time for the first read of a token, and the time for
    each further sequence that reads the token (`attention_fit`).

    Assumed: attention takes the fitted times at other batch sizes too. The output projection takes a third of QKV's
    time, and the logits 0.97 of an MLP's. These are the ratios of their weights. Above 64 rows, products take the time
    of their FLOPs at `SHARE_OF_PEAK`, but at least the time of 64 rows. Attention of prompts takes the time of its
    FLOPs at `SHARE_OF_PEAK`.

    Left out, because the paper prints nothing: norms, rotary positions, sampling, and the time of the host. `host_s`
    can add the host's time to each step.
    """

    system: PaperSystem
    host_s: float = 0.0
    """Seconds of each step outside of the modelled kernels."""

    def seconds(self, shape: StepShape) -> float:
        layer_us = (
            self.products_us(shape.decoding + shape.prompt_tokens)
            + self.attention_us(shape)
            + _compute_us(4 * shape.prompt_reads * _HIDDEN)
        )
        logits_us = _LOGITS_OF_MLP * _product_us("mlp", _MLP_WEIGHTS, shape.sampled)
        return self.host_s + (_SHAPE.num_hidden_layers * layer_us + logits_us) * 1e-6

    def products_us(self, rows: int) -> float:
        """Microseconds of one layer's matrix products with this number of rows."""
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
    """Microseconds for the first read of each token."""
    again: float
    """Microseconds for each further sequence that reads the token."""
    largest_error: float
    """Largest relative error over the rows of Table 3."""


@cache
def attention_fit(system: PaperSystem) -> AttentionFit:
    """Fit times of decode attention to the 12 rows of Table 3, by least squares of relative errors.

    There is no constant term, because its fitted value was zero. All rows of Table 3 have 32 sequences. So the table
    cannot separate the first read of a shared token from the 31 further reads. Assumed: the first read of a shared
    token costs as much as the read of a private token.

    With this fit, ChunkAttn's token rate grows by a factor of 1.31 from 16 to 96 sequences. The paper's Figure 4 says
    1.45, but the times in Figure 4 disagree with Table 3.
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
    """Microseconds of a product of `rows` rows with a layer's matrices, which have this number of weights."""
    if rows == 0:
        return 0.0
    sizes, latencies = _table1(name)
    printed = float(np.interp(rows, sizes, latencies))
    return printed if rows <= sizes[-1] else max(printed, _compute_us(2 * rows * weights))


@cache
def _table1(name: str) -> tuple[list[int], list[float]]:
    """(rows of Table 1, microseconds of one layer's module `name` with these rows)."""
    printed = [row for row in paper_rows("table1") if row["metric"] == "latency"]
    return [int(row["batch_size"]) for row in printed], [float(row[name]) for row in printed]


def _compute_us(flops: float) -> float:
    return flops / (PEAK_FLOPS * SHARE_OF_PEAK) * 1e6


PARAMETERS = 13e9


@dataclass(frozen=True)
class Opt13bA100:
    """Step times of OPT-13B on one A100: a constant, a time for each decoding sequence, and a time for each prompt
    token.

    The paper prints no step times. The first two values are fitted to the mean batches of paged memory in Figure 13. On
    average, a request takes part in as many steps as its answer has tokens. So batch = rate * answer tokens * seconds
    of a step.

    Assumed: all requests are served at the rates of Figure 13. Prompts take the time of their FLOPs, 2 per parameter
    and token, at `SHARE_OF_PEAK`. The batches of other systems are not fitted.
    """

    def seconds(self, shape: StepShape) -> float:
        constant, sequence = self._fit
        return constant + sequence * shape.decoding + _PROMPT_TOKEN_S * shape.prompt_tokens

    @cached_property
    def _fit(self) -> tuple[float, float]:
        """(seconds of a step, seconds for each decoding sequence)."""
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
    """(printed mean batch, seconds that a step without prompts takes if it leads to that batch)."""
    names = ("figure", "traffic", "manager")
    (row,) = (row for row in paged_attention() if tuple(row[name] for name in names) == ("13", traffic, "paged"))
    batch, per_s, lengths = float(row["value"]), float(row["rate"]) / 60, LENGTHS[traffic]
    prompts = per_s * lengths.prompt.mean * _PROMPT_TOKEN_S  # share of the time that prompts take
    return batch, batch * (1 - prompts) / (per_s * lengths.answer.mean)
