"""Times of steps in replays: fitted, and from printed numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.attention.manager import Reads
from chunkbench.report.printed import paper_rows, stated_token_rates
from chunkbench.workloads.replay.measured import FittedStepTime, ServedRequest, TimedStep, non_negative, served_steps
from chunkbench.workloads.replay.paper_a100 import Opt13bA100, PaperA100, PaperSystem, attention_fit
from chunkbench.workloads.replay.step_time import StepShape

RECORDED = Path(__file__).parents[3] / "results/recorded/xeon-amx-2-cores/table4-caching/cases.jsonl"
NOTHING = Reads(0, 0, 0)


@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=4, max_size=8), st.integers(0, 99))
def test_no_step_from_the_fit_makes_it_better(rows: list[list[int]], seed: int) -> None:
    """The conditions that a minimum with coefficients >= 0 has, whatever method found it (Karush, Kuhn, Tucker)."""
    columns = np.array(rows, float)
    target = np.random.default_rng(seed).normal(size=len(rows))
    found = non_negative(columns, target)
    slope = columns.T @ (columns @ found - target)
    assert (found >= 0).all()
    assert (slope > -1e-8).all()
    assert np.abs(slope[found > 0]).max(initial=0) < 1e-8


def invented(count: int) -> list[StepShape]:
    chance = np.random.default_rng(0)

    def one() -> StepShape:
        b, private, shared = (int(chance.integers(low, high)) for low, high in ((1, 32), (1, 999), (0, 999)))
        return StepShape(b, Reads(b * private, shared, b * shared), int(chance.choice([0, 1, 512])))

    return [one() for _ in range(count)]


def test_a_fit_finds_the_costs_that_made_the_steps() -> None:
    def cost(shape: StepShape) -> float:
        reads = shape.reads
        first, again = reads.private + reads.shared, reads.shared_covered - reads.shared
        return 0.004 + 1e-4 * shape.decoding + 3e-4 * shape.prompt_tokens + 2e-7 * first + 5e-8 * again

    model = FittedStepTime.fit([(shape, cost(shape)) for shape in invented(200)])
    for shape in (StepShape(7, Reads(700, 64, 448), 100), StepShape(0, NOTHING, 512)):
        assert model.seconds(shape) == pytest.approx(cost(shape))
    assert model.seconds(StepShape(0, Reads(99, 0, 0))) == pytest.approx(0.004)
    assert "fitted to 200 measured steps: 4 ms, 100 µs per decoding sequence, 300 µs" in model.words
    assert "200 ns per token read, 50 ns per further read" in model.words


def test_the_words_name_the_spread() -> None:
    """Every second step takes 10% longer and every other one 10% less, whatever it computes."""
    rows = [(shape, 0.01 * (0.9 + 0.2 * (n % 2))) for n, shape in enumerate(invented(4)[:1] * 100)]
    assert "half of these steps are predicted within 10%, 95% within 11%" in FittedStepTime.fit(rows).words
    with pytest.raises(ValueError, match="9 steps are too few"):
        FittedStepTime.fit(rows[:9])
    with pytest.raises(ValueError, match="more than 0 s"):
        FittedStepTime.fit([(shape, 0.0) for shape, _ in rows])


def test_steps_follow_from_requests() -> None:
    """Two prompts of 6 tokens, of which the second finds 4; budget 4; answers of 3 and 2 tokens."""
    requests = [ServedRequest(0.2, 6, 4, 2), ServedRequest(0.0, 6, 0, 3)]
    steps = [(1.0, 1, 4, 0.5), (2.0, 2, 4, 0.4), (3.0, 2, 0, 0.2), (4.0, 1, 0, 0.1)]
    assert served_steps(steps, requests, shared=4) == [
        (StepShape(0, NOTHING, 4, 1 + 2 + 3 + 4, 0), 0.5),
        (StepShape(0, NOTHING, 4, 5 + 6 + 5 + 6, 2), 0.4),
        (StepShape(2, Reads(6, 4, 8), 0, 0, 2), 0.2),
        (StepShape(1, Reads(8, 0, 0), 0, 0, 1), 0.1),
    ]
    with pytest.raises(ValueError, match=r"step 1 of the server had 1 sequences and 4 prompt tokens; .* give 2 and 4"):
        served_steps([steps[0], (2.0, 1, 4, 0.4)], requests, shared=4)
    with pytest.raises(ValueError, match=r"step 1 .* give 2 and 4"):
        served_steps([steps[0], (2.0, 2, 5, 0.4)], requests, shared=4)


def recorded() -> list[tuple[int, int, list[TimedStep]]]:
    """(arrival seed, n_p, steps) of ChunkLlama with its whole prompt shared, as recorded."""
    found = []
    for line in RECORDED.read_text().splitlines():
        case = json.loads(line)
        if case["implementation"] == "chunk_llama":
            for one in case["measurements"]:
                requests = [
                    ServedRequest(r["sent"], r["prompt_tokens"], r["cached_tokens"], r["tokens"])
                    for r in one["requests"]
                ]
                steps = [tuple(step) for step in one["server"]["every_step"]]
                found.append((one["arrival_seed"], case["n_p"], served_steps(steps, requests, case["n_s"])))
    return found


@pytest.mark.parametrize(("group", "of_the_sum", "of_half"), [(0, 0.02, 0.08), (1, 0.05, 0.1)])
def test_recorded_steps_that_the_fit_has_not_seen(group: int, of_the_sum: float, of_half: float) -> None:
    """Fitted to two arrival seeds, or to two prompt lengths, the model predicts the third."""
    runs = recorded()
    assert sum(len(steps) for *_, steps in runs) == 1372
    for left_out in {run[group] for run in runs}:
        model = FittedStepTime.fit([step for run in runs if run[group] != left_out for step in run[2]])
        unseen = [step for run in runs if run[group] == left_out for step in run[2]]
        taken = np.array([seconds for _, seconds in unseen])
        predicted = np.array([model.seconds(shape) for shape, _ in unseen])
        assert predicted.sum() == pytest.approx(taken.sum(), rel=of_the_sum)
        assert np.median(np.abs(predicted / taken - 1)) < of_half


@pytest.mark.parametrize(
    ("batch", "per_s", "prompt", "answer"), [(30.42, 2.0, 161, 338), (132.44, 30.0, 19, 58)], ids=["sharegpt", "alpaca"]
)
def test_the_printed_batches_come_back(batch: float, per_s: float, prompt: int, answer: int) -> None:
    """In a steady state as many requests come in a step as end in it, and each is in as many steps as it has tokens."""
    model, nothing = Opt13bA100(), Reads(0, 0, 0)

    def step_s(requests: float) -> float:
        without = model.seconds(StepShape(round(requests), nothing))
        more = model.seconds(StepShape(round(requests) + 1, nothing))
        decoding = without + (more - without) * (requests - round(requests))
        token_s = model.seconds(StepShape(0, nothing, 1000)) - model.seconds(StepShape(0, nothing))
        return decoding / (1 - per_s * prompt * token_s / 1000)

    assert per_s * answer * step_s(batch) == pytest.approx(batch)


LARGEST_ERROR: dict[PaperSystem, float] = {"paged_attn": 0.005, "paged_attn_star": 0.082, "chunk_attn": 0.05}
"""Of a row of Table 3."""


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
    # 23 sequences are vLLM's peak batch at 1 request/s, where Table 4 prints 19.92 ms per token.
    step = StepShape(23, Reads(23 * 1280, 0, 0), sampled=23)
    assert model.seconds(step) == pytest.approx(19.92e-3, rel=0.03)
