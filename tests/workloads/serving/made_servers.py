"""Facts about servers under load, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from chunkbench.bench.store.results import Status
from chunkbench.llama import SHAPES
from chunkbench.traffic.request_result import RequestResult
from chunkbench.workloads.serving.result import Measurement, ServerFacts, ServingResult

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
