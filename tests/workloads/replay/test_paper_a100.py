"""The step time of the paper's A100."""

from __future__ import annotations

import numpy as np
import pytest

from chunkbench.attention.manager import Reads
from chunkbench.report.printed import paper_rows, stated_token_rates
from chunkbench.workloads.replay.paper_a100 import PaperA100, PaperSystem, attention_fit
from chunkbench.workloads.replay.step_time import StepShape

LARGEST_ERROR: dict[PaperSystem, float] = {"paged_attn": 0.005, "paged_attn_star": 0.082, "chunk_attn": 0.05}
"""Of a row of Table 3."""
NOTHING = Reads(0, 0, 0)


@pytest.mark.parametrize("system", LARGEST_ERROR)
def test_table_3_comes_back(system: PaperSystem) -> None:
    model = PaperA100(system)
    errors = []
    for row in paper_rows("table3"):
        if row["implementation"] == system:
            n_p, n_s = int(row["n_p"]), int(row["n_s"])
            steps = [
                model.attention_us(StepShape(32, Reads(32 * (n_p - n_s + step), n_s, 32 * n_s)))
                for step in range(1, 65)
            ]
            errors.append(abs(np.mean(steps) / float(row["latency_us"]) - 1))
    assert len(errors) == 12
    assert max(errors) < LARGEST_ERROR[system]
    assert max(errors) == pytest.approx(attention_fit(system).largest_error)


@pytest.mark.parametrize("rows", [1, 32, 64])
def test_table_1_comes_back(rows: int) -> None:
    """Without attention, a step is 32 layers of QKV, output projection (a third of QKV) and MLP."""
    (row,) = (r for r in paper_rows("table1") if r["metric"] == "latency" and int(r["batch_size"]) == rows)
    layer_us = float(row["qkv_projection"]) * 4 / 3 + float(row["mlp"])
    assert PaperA100("paged_attn").seconds(StepShape(rows, NOTHING)) == pytest.approx(32 * layer_us * 1e-6)
    # Table 1's own self-attention, with 2049 tokens in each sequence: its kernel is not named, and not in the fit.
    attention = PaperA100("paged_attn").attention_us(StepShape(rows, Reads(rows * 2049, 0, 0)))
    assert attention == pytest.approx(float(row["self_attention"]), rel=0.03, abs=4)


def test_sharing_pays_more_with_more_sequences_as_in_figure_4() -> None:
    model = PaperA100("chunk_attn")
    stated = {one.batch_size: one.tokens_per_s for one in stated_token_rates("figure4")}
    rate = {
        b: b / model.attention_us(StepShape(b, Reads(int(b * 32.5), 2048, 2048 * b)))  # tokens per microsecond
        for b in (16, 96)
    }
    assert rate[96] / rate[16] == pytest.approx(stated[96] / stated[16], rel=0.1)


def test_prompts_take_the_time_of_their_flops() -> None:
    """2 FLOPs a weight and token, 4 for each element of a head and pair of tokens, at 0.6 of 312 TFLOP/s."""
    weights = 4 * 4096 * 4096 + 3 * 4096 * 11008
    flops = 32 * (2 * weights * 1000 + 4 * 4096 * (1000 * 1001 // 2))
    taken = PaperA100("paged_attn").seconds(StepShape(0, Reads(9, 0, 0), 1000, 1000 * 1001 // 2))
    assert taken == pytest.approx(flops / (0.6 * 312e12))
    logits = StepShape(0, NOTHING, 1000, 1000 * 1001 // 2, 1)
    assert PaperA100("paged_attn").seconds(logits) - taken == pytest.approx(160.77e-6 * 32000 / (3 * 11008))


def test_more_never_takes_less() -> None:
    model = PaperA100("paged_attn")
    times = [model.seconds(StepShape(0, NOTHING, tokens)) for tokens in range(600)]
    assert times == sorted(times)
    assert model.seconds(StepShape(0, NOTHING)) == 0
    assert PaperA100("paged_attn", host_s=0.004).seconds(StepShape(0, NOTHING)) == 0.004


def test_the_step_of_table_4() -> None:
    """23 sequences are vLLM's peak batch at 1 request/s, where Table 4 prints 19.92 ms per token."""
    step = StepShape(23, Reads(23 * 1280, 0, 0), sampled=23)
    assert PaperA100("paged_attn").seconds(step) == pytest.approx(19.92e-3, rel=0.03)


def test_words_say_what_was_assumed() -> None:
    words = PaperA100("chunk_attn", host_s=0.004).words
    assert all(
        part in words for part in ("Table 1", "Table 3", "5.0%", "assumed: 60% of 312 TFLOP/s", "4 ms of the host")
    )
    assert "host" not in PaperA100("paged_attn").words
