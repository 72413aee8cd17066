"""Reports of rings, and their figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from chunkbench.bench.analysis.derive import derive
from chunkbench.bench.store import Run
from chunkbench.report import figures
from chunkbench.report.build import build
from chunkbench.report.claims.evidence import Evidence, RunRows
from chunkbench.report.claims.judgement import Judgement
from chunkbench.workloads.ring.claims import JUDGES
from chunkbench.workloads.ring.metrics import BLOCKS, METRICS, block_bytes, busy
from chunkbench.workloads.ring.result import RingResult
from tests.workloads.made import check_inside, drawn, ring_result

SCHEMES = ["one_process", "no_exchange", "ring", "zigzag", "all_gather", "tree_decode", "torch_ring"]


def prefill(**axes: Any) -> list[RingResult]:
    """One process takes 0.4 s, the ring three quarters of that and zigzag half."""
    return [
        ring_result("one_process", (0.4, 0.001), sent=0, wait=0.0, pairs=(400, 0), **axes),
        ring_result("no_exchange", (0.18, 0.18), sent=0, wait=0.0, pairs=(200, 200), **axes),
        ring_result("ring", (0.15, 0.3), pairs=(100, 300), **axes),
        ring_result("zigzag", (0.2, 0.2), pairs=(200, 200), peak=48_000_000, **axes),
        ring_result("tree_decode", status="unsupported", reason="is for phase: decode", **axes),
    ]


def decode() -> list[RingResult]:
    axes: dict[str, Any] = {"phase": "decode", "batch_size": 4, "n_p": 8192, "n_s": 6144}
    return [
        ring_result("one_process", (0.02, 0.001), sent=0, wait=0.0, pairs=(400, 0), **axes),
        ring_result("tree_decode", (0.01, 0.01), pairs=(200, 200), **axes),
        ring_result("torch_ring", status="unavailable", reason="is not there", **axes),
        ring_result("ring", status="crashed", reason="rank 1 was killed by SIGKILL", **axes),
    ]


def slow_links() -> list[RingResult]:
    """c* is 2 F / B = 800 tokens in float32 without a mask; the ring has blocks of a half and of twice that."""
    found = []
    for n_p, wait in ((800, 0.2), (3200, 0.004)):
        axes: dict[str, Any] = {"n_p": n_p, "link": 10**8, "mask": "full", "rates": (4e10, 1e8)}
        found.append(ring_result("ring", wait=wait, transfer=0.4, **axes))
        found.append(ring_result("one_process", (0.4, 0.001), sent=0, wait=0.0, **axes))
    return found


@pytest.fixture
def make(make_run: Any) -> Any:
    def made(results: list[RingResult], **experiment: Any) -> Run:
        named = {"name": "ring", "kind": "ring", "baseline": "one_process", "implementations": SCHEMES, "paper": None}
        run: Run = make_run(results, **named | experiment)
        return run

    return made


@pytest.fixture
def picture(make: Any) -> Figure:
    return drawn(make(prefill() + decode() + slow_links()))


def test_the_figure_has_a_timeline_of_each_phase_and_exposed_transfers(picture: Figure) -> None:
    plots = [plot for plot in picture.axes if plot.get_visible()]
    titles = [plot.get_title() for plot in plots]
    assert titles == ["prefill, 4,096 tokens", "decode, 8,192 tokens", "the ring on a slow link"]
    first, second, third = plots
    # Schemes that exchange nothing have no timeline; two lines for the two ranks of the others.
    ranks = [[label.get_text() for label in plot.get_yticklabels()] for plot in (first, second)]
    assert ranks == [
        ["Ring 0", "Ring 1", "Zigzag ring 0", "Zigzag ring 1"],
        ["Tree decode 0", "Tree decode 1"],
    ]
    measured, predicted = (np.column_stack(line.get_data()) for line in third.get_lines()[:2])
    assert measured.tolist() == pytest.approx(np.array([[400, 50], [1600, 1]]))
    assert predicted[0].tolist() == pytest.approx([400, 50])
    assert predicted[-1].tolist() == pytest.approx([1600, 0])
    legend = [text.get_text() for text in picture.legends[0].get_texts()]
    assert legend == ["computes", "sends and receives", "only waits"]


def test_texts_of_the_figure_lie_inside_and_do_not_cover_each_other(picture: Figure) -> None:
    picture.canvas.draw()
    texts: list[Text] = []
    for axis in (axis for plot in picture.axes if plot.get_visible() for axis in (plot.xaxis, plot.yaxis)):
        low, high = sorted(axis.get_view_interval())
        labels = [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
        boxes = [label.get_window_extent() for label in labels if label.get_text()]
        assert boxes
        for number, box in enumerate(boxes):
            assert not any(box.overlaps(other) for other in boxes[number + 1 :])
        texts += [*labels, axis.label, axis.axes.title]
    check_inside(picture, texts)


def test_there_is_no_figure_where_nothing_moves(make: Any) -> None:
    still = [result for result in prefill() if result.implementation in ("one_process", "no_exchange")]
    run = make(still)
    assert figures.draw(build(run), run.manifest) is None


def test_figures_are_medians_over_rounds_of_the_slowest_or_least_hidden_rank() -> None:
    def rank(total: float, compute: float, wait: float, transfer: float) -> dict[str, float]:
        return {"total_s": total, "compute_s": compute, "wait_s": wait, "transfer_s": transfer}

    rounds = [
        [rank(1, 0.5, 0.1, 0.4), rank(2, 0.2, 0.6, 0.8)],
        [rank(3, 1.2, 0.2, 0.4), rank(1, 0.3, 0.4, 0.8)],
        [rank(5, 4.5, 0.3, 0.4), rank(4, 2.8, 0.2, 0.8)],
    ]
    result = RingResult.model_validate(ring_result("ring").model_dump(mode="json") | {"times": rounds})
    assert busy(result) == pytest.approx((0.5, 0.3))  # of 50, 40 and 90%, and of 10, 30 and 70%
    found = {name: metric.value(result) for name, metric in METRICS.items()}
    assert (found["least_busy"], found["most_busy"]) == pytest.approx((0.3, 0.5))
    assert found["exposed"] == pytest.approx(0.75)  # of 75, 50 and 75%
    assert found["work"] == 1.5  # of 100 and 300 pairs
    assert (found["sent_bytes"], found["peak_bytes"]) == (2_000_000, 3_000_000)
    assert METRICS["exposed"].value(ring_result("no_exchange", sent=0, wait=0.0)) is None, "nothing moves"
    lost = ring_result("ring", status="crashed")
    assert all(metric.value(lost) is None for metric in METRICS.values())


def test_six_blocks_of_float32_and_the_larger_output_of_bfloat16() -> None:
    """q, K, V, the K and V that arrive, and the output: 2,048 tokens, 8 heads of 128 numbers."""
    block = 2048 * 8 * 128
    assert block_bytes(ring_result("ring")) == BLOCKS * 4 * block
    assert block_bytes(ring_result("ring", dtype="bfloat16")) == (5 * 2 + 4) * block
    assert block_bytes(ring_result("ring", kv_heads=2)) == (4 + 4 * 4 / 4 + 4) * block
    assert METRICS["of_six_blocks"].value(ring_result("ring", peak=BLOCKS * 4 * block * 2)) == 2
    assert METRICS["of_six_blocks"].value(ring_result("ring", peak=None)) is None


def judge(id: str, *results: RingResult) -> Judgement:
    return JUDGES[id](Evidence([RunRows(derive(list(results)))]))


@pytest.mark.parametrize(
    ("ranks", "gain", "verdict"),
    [
        (2, 0.996, "does not hold"),
        (2, 1.0, "does not hold"),
        (2, 1.49, "holds"),
        (2, 1.51, "more than stated"),
        (8, 1.58, "does not hold"),
        (8, 1.6, "holds"),
        (8, 1.65, "more than stated"),
    ],
)
def test_zigzag_gains_more_than_nothing_and_what_the_text_says_on_8_ranks(
    ranks: int, gain: float, verdict: str
) -> None:
    pairs = [2 * rank + 1 for rank in range(ranks)]
    ring = ring_result("ring", [0.3 * gain] * ranks, pairs=pairs)
    judged = judge("RG-balance", ring, ring_result("zigzag", [0.3] * ranks, pairs=[ranks] * ranks))
    assert (judged.verdict, judged.measured) == (verdict, pytest.approx(gain)), judged.reason


@pytest.mark.parametrize(
    ("ranks", "sent", "verdict", "gain"),
    [
        (2, 20_000, "does not hold", 1 / 3),
        (4, 20_000, "does not hold", 1),
        (5, 20_000, "holds", 4 / 3),
        (5, 2_000_000, "does not hold", 1),
    ],
)
def test_the_tree_needs_fewer_bytes_and_fewer_rounds(ranks: int, sent: int, verdict: str, gain: float) -> None:
    axes: dict[str, Any] = {"phase": "decode", "batch_size": 32, "n_p": 8192, "n_s": 8192}
    rings = [
        ring_result(name, [0.1] * ranks, pairs=[1] * ranks, sent=bytes, **axes)
        for name, bytes in (("ring", 2_000_000), ("tree_decode", sent))
    ]
    judged = judge("RG-tree", *rings)
    assert (judged.verdict, judged.measured) == (verdict, pytest.approx(gain)), judged.reason
    assert f"3 all-reduces against {ranks - 1} of the ring, so the tree has fewer from 5 ranks on" in judged.reason
