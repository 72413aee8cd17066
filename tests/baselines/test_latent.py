"""Rows of latent attention against float64, at odd and at DeepSeek's dimensions; inputs, amounts and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from chunkbench.baselines.on_gpu import GPU_REMEDY
from chunkbench.baselines.registry import LATENT_FORMS, REGISTRY
from chunkbench.bench.contract import Session
from chunkbench.bench.experiment.sessions import TOLERANCE
from chunkbench.bench.measure.profiler import thread_count
from chunkbench.bench.runner.sessions import Amounts
from chunkbench.bench.workers.latent_inputs import LatentInputs, make_latent_check
from chunkbench.kernels import cpu
from chunkbench.latent import LATENTS, LatentShape, why_not_latent
from chunkbench.workloads.decode import DecodeWorkload
from chunkbench.workloads.decode.latent_amounts import shared_prompt_tokens
from tests.baselines.checked import TREE, make_point

ODD = LatentShape(kv_rank=96, rope=32, nope=48, v=80)
DEEPSEEK = LATENTS["deepseek-v3"].model_copy(update={"heads": None})
ON_CPUS = [name for name in LATENT_FORMS if REGISTRY.load(name).availability("cpu").remedy != GPU_REMEDY]
POINTS: dict[str, dict[str, Any]] = {
    "part shared": {},
    "nothing shared": {"n_s": 0},
    "everything shared": {"n_s": 70},
    "everything shared, whole chunks": {"n_p": 64, "n_s": 64, "n_c": 2},
    "one sequence": {"batch_size": 1},
    "tree": TREE,
    "ragged, bfloat16": {"n_p": (50, 90), "dtype": "bfloat16"},
    "float16": {"dtype": "float16"},
    "bfloat16, projections": {"dtype": "bfloat16", "projections": "timed"},
    "projections": {"projections": "timed"},
    "DeepSeek's dimensions": {"latent": DEEPSEEK, "n_c": 2, "dtype": "bfloat16", "chunk_size": 32},
}


def inputs_of(**axes: Any) -> LatentInputs:
    shape = axes.get("latent", ODD)
    point = make_point(**{"heads": 3, "kv_heads": 1, "latent": shape, "head_dim": shape.width, "n_c": 4} | axes)
    return LatentInputs(point, seed=1)


def check(name: str, session: Session, inputs: LatentInputs) -> None:
    """Decode after appends, rewind, repeat, and compare with float64."""
    point = inputs.point
    out = torch.empty(inputs.out_shape(name), dtype=getattr(torch, point.dtype))
    with thread_count(1):
        for attempt in range(2):
            session.rewind()
            for step in range(1, point.n_c + 1):
                session.append(*inputs.completion(step))
                session.plan()
            expected = make_latent_check(inputs, point.n_c, attempt, sample=False)
            out.fill_(float("nan"))
            session.decode(expected.q, out)
            assert expected.max_error(out) < TOLERANCE[point.dtype]
    assert session.kv_bytes() >= DecodeWorkload().least_kv_bytes(point, 1, name)


@pytest.mark.parametrize("axes", POINTS.values(), ids=POINTS.keys())
@pytest.mark.parametrize("name", ON_CPUS)
def test_decode_agrees_with_float64(name: str, axes: dict[str, Any]) -> None:
    implementation, inputs = REGISTRY.load(name), inputs_of(**axes).in_form(LATENT_FORMS[name])
    for answer in (implementation.availability("cpu"), implementation.supports(inputs.point)):
        if not answer.ok:
            pytest.skip(answer.reason)
    session = implementation.prepare(inputs)
    check(name, session, inputs)
    assert session.kv_bytes() <= DecodeWorkload().needs(inputs.point, 1, name, implementation.shares_storage)


@pytest.mark.skipif(cpu.native() is None, reason=cpu.why_missing() or "")
@pytest.mark.parametrize("isa", cpu.native().isas() if cpu.native() else [])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_every_instruction_set_computes_wide_keys(isa: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHUNKBENCH_ISA", isa)
    for name in ("mla_absorb_two_phase", "mla_mixed"):
        inputs = inputs_of(latent=DEEPSEEK, dtype=dtype, heads=7, n_p=90, n_s=64).in_form(LATENT_FORMS[name])
        session = REGISTRY.load(name).prepare(inputs)
        session.append(*inputs.completion(1))
        session.plan()
        check = make_latent_check(inputs, 1, 0, sample=False)
        out = torch.full(inputs.out_shape(name), float("nan"), dtype=getattr(torch, dtype))
        session.decode(check.q, out)
        assert check.max_error(out) < TOLERANCE[dtype]


def test_a_wrong_output_is_found() -> None:
    for name, form in LATENT_FORMS.items():
        inputs = inputs_of().in_form(form)
        check = make_latent_check(inputs, 1, 0, sample=True)
        assert check.max_error(torch.zeros(inputs.out_shape(name))) == 1
        assert check.max_error(torch.full(inputs.out_shape(name), float("nan"))) == float("inf")


def test_amounts_are_those_of_the_form() -> None:
    """Numbers by hand, for DeepSeek-V2-Lite in 2 bytes: 1,152 bytes of a latent token, 10,240 of an expanded one."""
    point = inputs_of(latent=DEEPSEEK, heads=16, batch_size=4, n_p=100, n_s=60, dtype="bfloat16").point
    plain, absorbed = (4 * 16 * numbers * 2 for numbers in (192 + 128, 576 + 512))  # q and out
    assert shared_prompt_tokens(point, 0) == 60

    def amounts(name: str) -> tuple[int, int, int]:
        implementation = REGISTRY.load(name)
        found = DecodeWorkload().amounts(point, 0, name, implementation.reads_shared_once, [5])
        return found.unique_bytes[0], found.read_bytes[0], found.flops[0]

    own = 4 * (40 + 5)
    assert amounts("mla_absorb_two_phase") == ((60 + own) * 1152 + absorbed,) * 2 + (16 * 2176 * (240 + own),)
    assert amounts("mla_absorb_star")[1] == (240 + own) * 1152 + absorbed
    assert amounts("mla_naive") == ((60 + own) * 10240 + plain,) * 2 + (16 * 640 * (240 + own),)
    assert amounts("mla_mixed")[2] == 16 * (640 * 240 + 2176 * own)
    assert amounts("mla_mixed")[0] == 60 * 10240 + own * 1152 + plain + absorbed
    assert point.token_bytes == 1152
    assert DecodeWorkload().amounts(point, 0, "mla_auto", True, [5]) == Amounts()  # it chooses by what it probes


def test_who_computes_what() -> None:
    assert why_not_latent(None, None) == why_not_latent(ODD, "absorbed") == ""
    assert "latent" in why_not_latent(ODD, None)
    assert "latent" in why_not_latent(None, "both")
    assert LATENTS["kimi-k2"].break_even(2, 0.9e12, 40e9) == pytest.approx(0.294 * 22.5, rel=1e-2)
