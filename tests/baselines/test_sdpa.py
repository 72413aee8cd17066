"""SDPA adapters: the layout, tested with the backend that every machine has, and the points that each refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend

from chunkbench.baselines import sdpa
from tests.baselines.checks import check, inputs_of, make_point


@pytest.mark.parametrize("axes", [{}, {"kv_heads": 2}, {"n_p": (50, 90)}], ids=["equal", "grouped heads", "ragged"])
def test_the_adapters_call_computes_attention(axes: dict[str, Any]) -> None:
    inputs = inputs_of(**axes)
    check(sdpa.SdpaSession(inputs, SDPBackend.MATH), inputs)


def test_an_adapter_uses_its_own_backend_only() -> None:
    inputs = inputs_of(n_c=1)
    out = torch.empty(4, 4, 64)
    for adapter in (sdpa.SdpaEfficient, sdpa.Cudnn):
        session = adapter().prepare(inputs)
        if not torch.cuda.is_available():  # PyTorch has neither backend on a CPU, and must not use another one
            with pytest.raises(RuntimeError, match=r"No (available kernel|viable backend)"):
                session.decode(inputs.queries(1), out)


def test_points_that_a_backend_refuses_are_unsupported() -> None:
    efficient, cudnn = sdpa.SdpaEfficient(), sdpa.Cudnn()
    assert efficient.supports(make_point()).ok
    assert efficient.supports(make_point(n_p=(50, 90))).ok
    assert cudnn.supports(make_point(dtype="float16")).ok
    assert not cudnn.supports(make_point()).ok
    assert not cudnn.supports(make_point(dtype="float16", n_p=(50, 90))).ok
