"""What the engine compiles at its start: every product that a step can need, within a limit that no budget changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from chunkbench.serving.engine import packed_linear
from chunkbench.serving.engine.packed_linear import PackedLinear, compile_products, pack_linear_layers

pytestmark = pytest.mark.skipif(not packed_linear.can_pack(torch.float32), reason="needs oneDNN")
SMALL = [8, 16, 24, 32, 40, 48, 56, 64]


@pytest.fixture
def model() -> nn.Module:
    made = nn.ModuleDict({"a": nn.Linear(8, 16), "b": nn.Linear(8, 16), "head": nn.Linear(16, 32)})
    pack_linear_layers(made)
    return made


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(outputs, rows) of each product. A row takes a second."""
    done: list[tuple[int, int]] = []
    forward = PackedLinear.forward

    def recorded(layer: PackedLinear, x: torch.Tensor) -> torch.Tensor:
        done.append((layer.out_features, len(x)))
        return forward(layer, x)

    monkeypatch.setattr(PackedLinear, "forward", recorded)
    monkeypatch.setattr(packed_linear, "monotonic", lambda: float(sum(rows for _, rows in done)))
    return done


def compiled(model: Any, most_rows: int, most_logits: int, seconds: float) -> None:
    compile_products(model, most_rows, model["head"], most_logits, seconds)


def test_every_size_once_and_logits_of_a_batch_alone(model: nn.Module, computed: list[tuple[int, int]]) -> None:
    compiled(model, 130, 20, 1e9)
    assert [rows for outputs, rows in computed if outputs == 16] == [*SMALL, 96, 128, 160]
    assert [rows for outputs, rows in computed if outputs == 32] == [8, 16, 24]


@pytest.mark.parametrize("most_rows", [512, 2**40])
def test_the_time_does_not_grow_with_the_budget(
    model: nn.Module, computed: list[tuple[int, int]], most_rows: int
) -> None:
    compiled(model, most_rows, 8, 1000)
    assert computed[:2] == [(16, 8), (32, 8)]
    assert 1000 <= sum(rows for _, rows in computed) < 1300
