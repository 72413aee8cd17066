"""Made-up results of servers, replays and rings, and what the figures of runs show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.text import Text

from chunkbench.attention.text import SegmentText
from chunkbench.bench.store import Run
from chunkbench.bench.store.results import Status
from chunkbench.llama import SHAPES
from chunkbench.report import figures
from chunkbench.report.build import build
from chunkbench.traffic.replayed import ReplayRequest
from chunkbench.traffic.request_result import RequestResult
from chunkbench.workloads.replay.paper_a100 import Opt13bA100
from chunkbench.workloads.replay.result import MemoryMoment, ReplayResult, ReplaySeed
from chunkbench.workloads.ring.methods import CHOICES
from chunkbench.workloads.ring.result import Activity, RankFacts, RankTimes, RingPoint, RingResult
from chunkbench.workloads.serving.result import Measurement, ServerFacts, ServingResult


def drawn(run: Run) -> Figure:
    figure = figures.draw(build(run), run.manifest)
    assert figure is not None
    return figure


def caption(run: Run) -> str:
    return " ".join(" ".join(text.get_text() for text in drawn(run).texts).split())


def check_inside(picture: Figure, texts: Iterable[Text]) -> None:
    """No text is cut off at the edges."""
    picture.canvas.draw()
    renderer = picture.canvas.get_renderer()
    width, height = picture.canvas.get_width_height()
    for text in texts:
        box = text.get_window_extent(renderer)
        assert not text.get_text() or (box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height), text


TOKENS = 10


def measurement(
    seed: int, latency: float, peak_kv_bytes: int | None = None, peak_batch: int | None = None
) -> Measurement:
    """Two requests with this normalized latency in seconds per token; half of it passes before the first token."""
    whole = latency * TOKENS
    requests = tuple(
        RequestResult(
            due=due,
            sent=due,
            first=due + whole / 2,
            last=due + whole,
            prompt_tokens=100,
            asked_tokens=TOKENS,
            tokens=TOKENS,
            cached_tokens=50,
        )
        for due in (0.0, 1.0)
    )
    server = ServerFacts(sampled=False, peak_kv_bytes=peak_kv_bytes, peak_batch=peak_batch)
    return Measurement(arrival_seed=seed, requests=requests, client_cpu=0.1, server=server)


def serving_facts(
    system: str,
    *,
    n_p: int = 1024,
    n_s: int = 0,
    load: int = 80,
    rate: float = 1.0,
    measurements: Sequence[Measurement] = (),
    status: Status = "ok",
) -> ServingResult:
    """A line of `cases.jsonl` of `kind: serving`."""
    shape = SHAPES["small-llama"]
    samples = tuple(((m.requests[0].last or 0) / TOKENS) * 1e6 for m in measurements)
    return ServingResult(
        key=f"{system} {n_p} {n_s} {load}",
        experiment="table4",
        implementation=system,
        label=system,
        n_p=n_p,
        n_s=n_s,
        n_c=TOKENS,
        batch_size=32,
        model=shape,
        dtype="float32",
        device="cpu",
        load=load,
        status=status,
        us_per_token=samples,
        requests_per_s=rate,
        reference="vllm",
        measurements=tuple(measurements),
    )


def replay_seed(
    number: int = 0,
    *,
    shares: Sequence[int] = (1000, 0, 0, 0),
    saved: int = 0,
    **facts: Any,
) -> ReplaySeed:
    """A replay whose memory is used, reserved and lost inside and outside by these slots of 1000 all the time; sharing
    saves `saved` more tokens."""
    used, reserved, inside, outside = shares
    timeline = [MemoryMoment(at, 1, 0, used, reserved, inside, outside, 0, 0, used + saved) for at in (0.0, 1.0)]
    counted = dict.fromkeys(
        ("requests", "refused", "prompt_tokens", "cached_tokens", "distinct_tokens", "computed_tokens", "preemptions",
         "evicted_blocks", "steps", "peak_slots", "peak_batch"), 0,
    )  # fmt: skip
    return ReplaySeed(**{**counted, "arrival_seed": number, "end_s": 1.0, "timeline": tuple(timeline), **facts})


def replay_facts(
    manager: str, experiment: str, seconds: float = 0.05, seeds: Sequence[ReplaySeed] = (), **axes: Any
) -> ReplayResult:
    """A line of `cases.jsonl` of `kind: replay` in the PagedAttention paper's setup, changed by `axes`; each seed has
    this normalized latency, seconds per token."""
    replays = tuple(seeds) or (replay_seed(),)
    values: dict[str, Any] = {
        "model": SHAPES["llama2-13b"],
        "memory": 15_728,
        "dtype": "float16",
        "device": "cpu",
        "batch_size": 256,
        "block_size": 16,
        "chunk_size": 16,
        "n_s": 0,
        **axes,
    }
    return ReplayResult(
        key=f"{manager} {experiment} {sorted(axes.items(), key=repr)}",
        experiment=experiment,
        implementation=manager,
        label=manager,
        status="ok",
        us_per_token=(seconds * 1e6,) * len(replays),
        replays=replays,
        step_time=Opt13bA100().words,
        **values,
    )


def sustained(manager: str, rate: int, experiment: str, rates: int = 2, **axes: Any) -> list[ReplayResult]:
    """Rows at several rates (requests per minute), of which exactly this one is sustained at 100 ms per token."""
    above = [replay_facts(manager, experiment, 1.0 + more, rate=(more + 2) * rate, **axes) for more in range(rates - 1)]
    return [replay_facts(manager, experiment, 0.1, rate=rate, **axes), *above]


def request(due: float, *prompt: tuple[int, int], answer: int, number: int) -> ReplayRequest:
    """A request whose prompt has these segments (ids and tokens); its answer is nobody else's."""
    text = SegmentText((*prompt, (1000 + number, answer)), sum(tokens for _, tokens in prompt))
    return ReplayRequest(due, text)


ROUNDS = (1.0, 1.25, 0.8)
"""How much longer each round took than the first one."""


def ring_result(
    implementation: str,
    seconds: Sequence[float] = (0.1, 0.2),
    *,
    compute: float = 0.5,
    transfer: float = 0.4,
    wait: float = 0.1,
    pairs: Sequence[int] = (100, 300),
    sent: int | None = 2_000_000,
    peak: int | None = 3_000_000,
    status: Status = "ok",
    reason: str = "",
    rates: tuple[float | None, float | None] = (4e10, 2e9),
    hosts: int = 1,
    **axes: Any,
) -> RingResult:
    """A result of some ranks: the seconds of each, and shares of them; sent and peak bytes are the same for all."""
    given = {"device": "cpu", "dtype": "float32", "n_p": 4096, "heads": 8, "ranks": len(seconds)} | axes
    point = RingPoint.model_validate(RingPoint.completed(given))

    def times(total: float) -> RankTimes:
        return RankTimes(
            total_s=total, compute_s=compute * total, wait_s=wait * total, transfer_s=transfer * total if sent else 0.0
        )

    moves: tuple[Activity, ...] = (("transfer", 0.0, 0.04), ("wait", 0.05, 0.06)) if sent else ()
    timeline: tuple[Activity, ...] = (("compute", 0.0, 0.05), *moves)
    measured = status in ("ok", "noisy")
    return RingResult(
        **dict(point),
        key=f"{implementation} {sorted(given.items())}",
        experiment="made",
        implementation=implementation,
        label=CHOICES[implementation].label,
        status=status,
        reason=reason,
        times=tuple(tuple(times(longer * total) for total in seconds) for longer in ROUNDS) if measured else (),
        ranks_facts=tuple(RankFacts(sent_bytes=sent, peak_bytes=peak, pairs=count) for count in pairs)
        if measured
        else (),
        timeline=tuple(timeline for _ in seconds) if measured else (),
        flops_per_s=rates[0],
        bytes_per_s=rates[1],
        max_error=2.5e-7 if measured else None,
        tolerance=1e-5,
        hosts=hosts,
    )
