"""Native linear layers, norms and halves of a decoder layer against float64, with every instruction set."""

from __future__ import annotations

import itertools
import resource

import psutil
import pytest
import torch
from torch import nn

from chunkbench.kernels.cpu import native
from chunkbench.kernels.cpu.linear import PackedWeights, can_pack
from chunkbench.kernels.cpu.store import dtype_name

MODULE = native()
if MODULE is None:
    pytest.skip("needs the native module", allow_module_level=True)

ERRORS = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Largest error over the largest result: rounding of the result, and of sums."""
ROWS = (1, 2, 5, 13, 16, 31, 48, 49, 100)
SHAPES = ((16, 16), (96, 48), (64, 160), (80, 35), (576, 64))
"""Inputs, outputs."""


def error(y: torch.Tensor, expected: torch.Tensor) -> float:
    return ((y.double() - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("isa", MODULE.isas())
def test_products_of_every_shape(dtype: torch.dtype, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    for (inputs, outputs), bias in itertools.product(SHAPES, (False, True)):
        layer = nn.Linear(inputs, outputs, bias=bias, dtype=dtype)
        assert can_pack(layer)
        stored, wide = PackedWeights([layer]), PackedWeights([layer], "store32")
        added = PackedWeights([layer], "add32")
        for rows in ROWS:
            x = torch.randn(rows, inputs, dtype=dtype)
            expected = nn.functional.linear(x.double(), layer.weight.double(), layer.bias.double() if bias else None)
            for weights, limit in ((stored, ERRORS[dtype]), (wide, 3e-6)):
                y = torch.full((rows, weights.blocks * 16), float("nan"), dtype=dtype if weights is stored else None)
                MODULE.linear(weights.native, x.data_ptr(), rows, y.data_ptr(), 2, isa)
                assert error(y[:, :outputs], expected) < limit, (inputs, outputs, rows)
            before = torch.randn(rows, added.blocks * 16)
            y = before.clone()
            MODULE.linear(added.native, x.data_ptr(), rows, y.data_ptr(), 3, isa)
            assert error(y[:, :outputs], before[:, :outputs] + expected) < 3e-6


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("isa", MODULE.isas())
@pytest.mark.parametrize("bias", [False, True])
def test_a_gate(dtype: torch.dtype, isa: str, bias: bool) -> None:
    torch.manual_seed(0)
    gate, up = (nn.Linear(64, 96, bias=bias, dtype=dtype) for _ in range(2))
    weights = PackedWeights([gate, up], "gate")
    with torch.no_grad():
        gate.weight.mul_(40)  # exponentials of large numbers, too
    weights = PackedWeights([gate, up], "gate")
    for rows in ROWS:
        x = torch.randn(rows, 64, dtype=dtype)
        parts = [
            nn.functional.linear(x.double(), one.weight.double(), one.bias.double() if bias else None)
            for one in (gate, up)
        ]
        y = torch.full((rows, 96), float("nan"), dtype=dtype)
        MODULE.linear(weights.native, x.data_ptr(), rows, y.data_ptr(), 2, isa)
        assert error(y, nn.functional.silu(parts[0]) * parts[1]) < ERRORS[dtype]


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("rows", [1, 20])
def test_a_norm(dtype: torch.dtype, rows: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(rows, 96) * 3, torch.randn(96)
    y = torch.empty(rows, 96, dtype=dtype)
    MODULE.rms_norm(dtype_name(dtype), x.data_ptr(), rows, 96, weight.data_ptr(), 1e-5, y.data_ptr(), 2)
    expected = nn.functional.rms_norm(x.double(), (96,), weight.double(), 1e-5)
    assert error(y, expected) < ERRORS[dtype]


def test_layers_that_the_kernels_do_not_take() -> None:
    assert not can_pack(nn.Linear(24, 16))
    assert not can_pack(nn.Linear(16, 16, dtype=torch.float64))
    with pytest.raises(ValueError, match="in is 16, 32"):
        MODULE.make_linear("float32", 24, 1, 0, 0, "store")


def test_inputs_of_any_shape_and_stride() -> None:
    layer = nn.Linear(32, 20)
    x = torch.randn(2, 64, 3)[:, ::2].transpose(1, 2)
    torch.testing.assert_close(PackedWeights([layer])(x), layer(x).detach(), atol=1e-5, rtol=1e-5)


def test_a_thread_that_lacks_memory_gives_an_error() -> None:
    """No thread finds room for a row of 2^24 numbers; none may end the process."""
    layer = MODULE.make_linear("float32", 1 << 24, 64, 0, 0, "store")
    x, y = torch.zeros(1), torch.zeros(1)
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + (16 << 20), before[1]))
    try:
        with pytest.raises(MemoryError):
            MODULE.linear(layer, x.data_ptr(), 1, y.data_ptr(), 2)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
