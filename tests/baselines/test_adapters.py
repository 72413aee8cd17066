"""Compares every implementation that can run here with the float64 reference; uses only the contract."""

from __future__ import annotations

from typing import Any

import pytest

from chunkbench.baselines.registry import REGISTRY, ROWS, Row
from chunkbench.bench.registry import UnknownImplementation
from tests.baselines.checks import check, inputs_of, make_point, points


@points()
@pytest.mark.parametrize("name", REGISTRY.names())
def test_decode_agrees_with_float64_at_every_step_and_after_rewinding(name: str, axes: dict[str, Any]) -> None:
    implementation = REGISTRY.load(name)
    answer = implementation.availability("cpu")
    if not answer.ok:
        pytest.skip(answer.reason)
    supported = implementation.supports(make_point(**axes))
    if not supported.ok:
        pytest.skip(supported.reason)
    inputs = inputs_of(**axes)
    check(implementation.prepare(inputs), inputs)


@pytest.mark.parametrize("name", REGISTRY.names())
def test_an_implementation_with_shares_storage_holds_a_shared_prefix_once(name: str) -> None:
    implementation = REGISTRY.load(name)
    if not implementation.availability("cpu").ok:
        pytest.skip("unavailable")
    inputs = inputs_of(n_p=320, n_s=320, batch_size=8, n_c=2)
    held = implementation.prepare(inputs).kv_bytes() / inputs.point.token_bytes
    if implementation.shares_storage:
        assert held < 2 * 320
    else:
        assert held >= 8 * 320


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_what_differs_in_a_row_is_an_attribute_of_its_adapter(row: Row) -> None:
    loaded = row.load()
    assert loaded.id == row.id
    assert row.differing.keys() <= {*dir(loaded.__base__)}


def test_an_unavailable_implementation_gives_a_reason_and_a_remedy() -> None:
    for surveyed in REGISTRY.survey("cpu"):
        if not surveyed.answer.ok:
            assert surveyed.answer.reason
    xformers = {s.id: s.answer for s in REGISTRY.survey("cpu")}["xformers"]
    assert (xformers.ok, xformers.reason) == (False, "xformers has no CPU operator")
    assert "NVIDIA GPU" in xformers.remedy


def test_the_error_for_an_unknown_name_suggests_a_close_one() -> None:
    with pytest.raises(UnknownImplementation, match="did you mean chunk_attn"):
        REGISTRY.load("chunk_atn")
