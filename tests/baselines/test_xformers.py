"""xformers: which operator the adapter chooses, and the call it makes, with a stand-in and the real signatures."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from chunkbench.baselines import xformers_
from tests.baselines.checks import attend, bound, check, inputs_of, make_point, signature


def named(name: str, *reasons: str) -> Any:
    return SimpleNamespace(NAME=name, not_supported_reasons=lambda inputs: list(reasons))


def forward(expected: Any) -> Callable[..., torch.Tensor]:
    """memory_efficient_attention_forward of q `[b, 1, h, d]` or `[b, 1, h_kv, group, d]`; K and V have q's heads."""

    def call(query: Any, key: Any, value: Any, *, op: Any) -> torch.Tensor:
        assert op is expected
        assert query.ndim == key.ndim
        assert query.shape[2:] == key.shape[2:] == value.shape[2:]
        rows = [attend(*(x[row].flatten(1, -2) for x in (query, key, value)))[0] for row in range(len(query))]
        return torch.stack(rows).reshape(query.shape)

    return call


@pytest.mark.parametrize(
    "axes", [{}, {"kv_heads": 2}, {"batch_size": 1}], ids=["equal", "grouped heads", "one sequence"]
)
def test_the_adapters_call_computes_attention(
    axes: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = named("triton_splitKF")
    monkeypatch.setattr(xformers_, "library", lambda: SimpleNamespace(forward=forward(chosen)))
    inputs = inputs_of(**axes)
    check(xformers_.XformersSession(inputs, chosen), inputs)


def test_the_call_matches_the_real_packages_signature(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = signature("xformers", "ops/fmha/__init__.py", "memory_efficient_attention_forward")
    checked = bound(real, forward(None))
    monkeypatch.setattr(xformers_, "library", lambda: SimpleNamespace(forward=checked))
    inputs = inputs_of(kv_heads=2)
    check(xformers_.XformersSession(inputs, None), inputs)


@pytest.mark.filterwarnings("ignore")
def test_the_real_package_has_the_preferred_operators() -> None:
    signature("xformers", "ops/fmha/__init__.py", "memory_efficient_attention_forward")  # skips without the package
    library = xformers_.library()
    q, k = torch.empty(1, 1, 2, 64, dtype=torch.float16), torch.empty(1, 8, 2, 64, dtype=torch.float16)
    assert xformers_.operator(library, q, k) is None  # all operators refuse CPU tensors
    names = [op.NAME for op in library.operators]
    assert all(any(name.startswith(start) for name in names) for start in ("triton_splitKF", "fa3F", "fa2F"))
    for op in library.operators:
        assert op.not_supported_reasons(library.inputs(q, k, k))


def test_operators_that_split_the_context_come_first() -> None:
    q, k = torch.empty(1, 1, 2, 64), torch.empty(1, 8, 2, 64)

    def chosen(*operators: Any) -> str | None:
        library = SimpleNamespace(operators=operators, inputs=lambda q, k, v: None)
        best = xformers_.operator(library, q, k)
        return None if best is None else str(best.NAME)

    cutlass, flash, split = named("cutlassF-pt"), named("fa2F@2.8-pt"), named("triton_splitKF")
    assert chosen(cutlass, flash, split) == "triton_splitKF"
    assert chosen(cutlass, flash) == "fa2F@2.8-pt"
    assert chosen(cutlass, named("triton_splitKF", "too old")) == "cutlassF-pt"
    assert chosen(named("fa3F@3", "not built")) is None
    assert chosen(named("fa3F@3"), named("fa3F_splitKV@3")) == "fa3F_splitKV@3"


def test_supports_and_package_version_work_without_a_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    xformers = xformers_.Xformers()
    assert xformers.supports(make_point(kv_heads=2).model_copy(update={"device": "cuda"})).ok
    assert not xformers.supports(make_point(n_p=(50, 90))).ok
    assert xformers.package_version().startswith("xformers ")
