"""Invented facts with small numbers, so that results can be computed by hand, and invented runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from chunkbench.bench.store import DecodeResult, Manifest, Peaks, Result, Run
from chunkbench.bench.store.profile import ProfileFacts, TraceFacts, Unit

AXES: dict[str, Any] = {
    "n_p": 1024,
    "n_s": 512,
    "n_c": 64,
    "batch_size": 32,
    "heads": 32,
    "kv_heads": 32,
    "head_dim": 128,
    "chunk_size": 64,
    "block_size": 32,
    "prompts": 1,
    "tree": None,
    "dtype": "bfloat16",
    "device": "cpu",
    "protocol": "strict",
    "cache": "cold",
    "mode": "eager",
}
"""The second row of Table 3."""


MakeFacts = Callable[..., DecodeResult]
MakeRun = Callable[..., Run]


def facts_of(implementation: str = "chunk_attn", **changes: Any) -> DecodeResult:
    """Facts with two timed steps per round; every entry of `samples_us` is a round with a group and peaks."""
    samples = changes.get("samples_us", ((10.0, 20.0),) * 3)
    rounds, steps = len(samples), len(changes.get("steps", (1, 64)))
    values: dict[str, Any] = {
        "key": f"{implementation} {sorted(changes.items(), key=repr)}",
        "experiment": "invented",
        "implementation": implementation,
        "label": implementation,
        **AXES,
        "status": "ok",
        "samples_us": samples,
        "steps": (1, 64),
        "append_samples_us": ((1.0, 3.0),) * rounds,
        "plan_samples_us": ((0.5, 0.5),) * rounds,
        "groups": (0,) * rounds,
        "peaks": (Peaks(read_bytes_per_s=1e9, matrix_flops_per_s=1e12, matrix_torch_flops_per_s=1e12),) * rounds,
        "unique_bytes": (6000, 9000)[:steps],
        "read_bytes": (9000, 12000)[:steps],
        "flops": (1000, 1000)[:steps],
    }
    return DecodeResult(**(values | changes))


@pytest.fixture
def facts() -> MakeFacts:
    return facts_of


AnyResult = TypeVar("AnyResult", bound=Result)

LABELS = {
    "naive": "Naive",
    "xformers": "xformers",
    "flash_attn": "FlashAttn",
    "paged_attn": "PagedAttn",
    "paged_attn_star": "PagedAttn*",
    "vllm_paged_attn": "vLLM (community CPU build 0.32.0)",
    "vllm_paged_attn_star": "vLLM* (community CPU build 0.32.0)",
    "shared_prefix_matmul": "Shared matmul",
    "chunk_attn_no_tpp": "ChunkAttn, no TPP",
    "chunk_attn": "ChunkAttn",
}
ABSENT = {
    "xformers": ("unavailable", "xformers has no CPU operator"),
    "paged_attn": ("unavailable", "needs the native kernels, which come with the next version"),
    "paged_attn_star": ("unavailable", "needs the native kernels, which come with the next version"),
}
POINTS = [(n_p, quarters * n_p // 4) for n_p in (1024, 2048, 4096) for quarters in (0, 2, 3, 4)]


def invented_us(implementation: str, n_p: int, n_s: int) -> float:
    """A plausible latency: microseconds per private and per shared token."""
    private, shared = PER_TOKEN.get(implementation, PER_TOKEN["naive"])
    return private * (n_p - n_s + 32) + shared * n_s


PER_TOKEN = {
    "naive": (24.5, 24.5),
    "flash_attn": (101.0, 101.0),
    "vllm_paged_attn": (24.9, 24.9),
    "vllm_paged_attn_star": (24.9, 5.1),
    "shared_prefix_matmul": (27.0, 3.4),
    "chunk_attn_no_tpp": (26.2, 6.0),
    "chunk_attn": (26.0, 2.1),
}
"""Microseconds for a private and for a shared token."""


def case(implementation: str, kind: type[AnyResult] = DecodeResult, **changes: Any) -> AnyResult:  # type: ignore[assignment]
    """Facts of one case; `us` gives the round means directly. `kind` keeps of the values those that it has."""
    n_p, n_s = changes.get("n_p", AXES["n_p"]), changes.get("n_s", AXES["n_s"])
    longest = n_p if isinstance(n_p, int) else n_p[1]
    status, reason = ABSENT.get(implementation, ("ok", ""))
    status, reason = changes.pop("status", status), changes.pop("reason", reason)
    values: dict[str, Any] = {
        "experiment": "table3",
        "implementation": implementation,
        "label": LABELS.get(implementation, implementation),
        **AXES,
        "n_p": n_p,
        "n_s": n_s,
        "status": status,
        "reason": reason,
        "threads": None,
    }
    us: Sequence[float] | None = changes.pop("us", None)
    if us is None and status in ("ok", "noisy", "incorrect"):
        base = invented_us(implementation, longest, n_s or 0)
        us = [base, base * 1.03, base * 0.99]
    if us:
        tokens = 32 * (n_p - n_s) + n_s if isinstance(n_p, int) and n_s is not None else 1000
        unique = tokens * 16384 + 524288
        whole = 32 * longest * 16384 + 524288
        values |= {
            "samples_us": tuple((mean * 0.98, mean * 1.02) for mean in us),
            "steps": (1, 64),
            "append_samples_us": ((210.0,) * 64,) * len(us),
            "plan_samples_us": ((40.0,) * 64,) * len(us),
            "groups": (0,) * len(us),
            "peaks": (Peaks(read_bytes_per_s=4e10, matrix_flops_per_s=8.87e11, matrix_torch_flops_per_s=8.87e11),)
            * len(us),
            "kv_bytes": unique,
            "unique_bytes": (unique, unique),
            "read_bytes": (unique, unique) if implementation == "chunk_attn" else (whole, whole),
            "flops": (2**29, 2**29),
            "max_error": 3e-3,
            "tolerance": 2e-2,
            "threads": 2,
        }
    values |= changes
    values["key"] = f"{implementation} {sorted(changes.items(), key=repr)}"
    return kind(**kind.from_older(values))


def run_in(folder: Path, cases: Iterable[Result], **experiment: Any) -> Run:
    facts = list(cases)
    described = {
        "name": "table3",
        "title": "Table 3: attention latency with shared prompts",
        "baseline": "chunk_attn",
        "confidence": 0.95,
        "implementations": list(LABELS),
        "expect": [],
    }
    manifest = {
        "schema_version": 1,
        "chunkbench_version": "0.1.0",
        "experiment": described | experiment,
        "environment": {
            "cpu": {"model": "Invented CPU 9000", "cores": 2},
            "memory_bytes": 24 * 2**30,
            "torch": {"version": "2.13.0", "note": "MKL takes its generic path for float32 on this CPU"},
            "python": "CPython 3.11.2",
            "gpus": [],
        },
        "git": {"commit": "0123456789abcdef", "dirty": False},
        "command": ["chunkbench", "run", "table3"],
        "seed": 0,
        "started_at": "2025-01-01T00:00:00Z",
        "finished_at": "2025-01-01T00:05:00Z",
        "interrupted": False,
        "points": len({repr([c.axis(name) for name in ("n_p", "n_s", "batch_size", "tree")]) for c in facts}),
    }
    return Run(folder, Manifest.model_validate(manifest), facts)


def table3_in(folder: Path) -> Run:
    """All 12 points of the paper's Table 3 for the ten implementations of the bundled experiment."""
    return run_in(folder, (case(name, n_p=n_p, n_s=n_s) for n_p, n_s in POINTS for name in LABELS))


@pytest.fixture
def make_case():
    return case


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    return partial(run_in, tmp_path)


@pytest.fixture
def table3(tmp_path: Path) -> Run:
    return table3_in(tmp_path)


def trace(scale: float = 1.0, place_bytes: int = 1000) -> TraceFacts:
    """Two of three threads work for 10 ms times `scale`: a shared unit, then two private ones, of which one waits 1 ms
    for it."""
    ms = scale / 1000
    units = [
        Unit(0, True, 0, 0, 4 * ms, 2 * ms, 0.5 * ms, 1 * ms, 2000, 64_000),
        Unit(1, False, 1 * ms, 2 * ms, 8 * ms, 3 * ms, 0.25 * ms, 2 * ms, 6000, 6_000),
        Unit(0, False, 4 * ms, 4 * ms, 10 * ms, 2 * ms, 1 * ms, 2 * ms, 4000, 4_000),
    ]
    return TraceFacts(threads=3, seconds=10.5 * ms, place_bytes=place_bytes, units=units)


def profile(
    facts: MakeFacts, ms: float = 10, read: float | None = 6, compute: float = 5, **changes: Any
) -> ProfileFacts:
    """A decode of so many ms, of which reading alone and computing alone take `read` and `compute`; None: no trace."""
    checked = {"max_error": 0.001, "tolerance": 0.01}
    rates: dict[str, Any] = {"unique_bytes": (5_000_000,), "read_bytes": (5_000_000,), "flops": (10**9,)}
    case = facts(
        samples_us=((1000 * ms,),) * 3, steps=(64,), **checked, **{key: changes.pop(key, rates[key]) for key in rates}
    )
    traces = {"decode": ms, "read": read, "compute": compute} if read is not None else {}
    place = changes.pop("place_bytes", 1000)
    calls = {name: [trace(each / 10 * step, place) for step in (1.0, 0.9, 1.1)] for name, each in traces.items()}
    return ProfileFacts(case=case, warm_us=(9000.0,) * 3, l2_bytes=1 << 20, no_counters="none", **calls, **changes)
