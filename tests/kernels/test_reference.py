"""Stores, products and the reference that all kernels are compared with."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from chunkbench.kernels.chunk_store import ChunkStore
from chunkbench.kernels.products import HalfProducts, Products, Scratch
from chunkbench.kernels.reference import attention


def attention_in_python(q, k, v, scale):
    """Attention in plain Python floats, one head at a time."""
    group, out = len(q) // len(k[0]), []
    for head, query in enumerate(q):
        keys, values = ([token[head // group] for token in tokens] for tokens in (k, v))
        scores = [scale * math.fsum(a * b for a, b in zip(query, key, strict=True)) for key in keys]
        weights = [math.exp(score - max(scores)) for score in scores]
        columns = [
            math.fsum(w * x for w, x in zip(weights, column, strict=True)) for column in zip(*values, strict=True)
        ]
        out.append([column / math.fsum(weights) for column in columns])
    return torch.tensor(out, dtype=torch.float64)


@pytest.mark.parametrize("scale", [None, 3.0])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2), (3, 1)])
def test_agrees_with_plain_python(heads, kv_heads, scale):
    torch.manual_seed(heads)
    q, k, v = torch.randn(3, heads, 8), torch.randn(5, kv_heads, 8), torch.randn(5, kv_heads, 8)
    several = attention(q, k, v, scale)
    assert several.dtype == torch.float64
    for row in range(3):
        expected = attention_in_python(q[row].tolist(), k.tolist(), v.tolist(), scale or 8**-0.5)
        torch.testing.assert_close(attention(q[row], k, v, scale), expected, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(several[row], expected, rtol=1e-13, atol=1e-13)


def test_huge_and_infinite_scores_follow_the_limits():
    q = torch.full((1, 16), 1e150, dtype=torch.float64)
    k = torch.tensor([1e150, -1e150, 0.9e150], dtype=torch.float64)[:, None, None].expand(3, 1, 16)
    v = torch.arange(3.0)[:, None, None].expand(3, 1, 16)
    assert attention(q, k, v).tolist() == [[0.0] * 16]
    q, k = torch.ones(1, 16), torch.zeros(4, 1, 16)
    v = torch.tensor([1.0, 2.0, 4.0, 8.0])[:, None, None].expand(4, 1, 16)
    k[3, 0, 0] = -torch.inf
    torch.testing.assert_close(attention(q, k, v)[0, 0], torch.tensor(7 / 3, dtype=torch.float64))
    k[1:3, 0, 0] = torch.inf
    assert attention(q, k, v)[0, 0] == 3.0
    k[:, 0, 0] = -torch.inf
    assert attention(q, k, v).isnan().all()


@pytest.mark.parametrize(
    ("q", "k", "v"),
    [
        ((4, 8), (3, 3, 8), (3, 3, 8)),
        ((4, 8), (3, 4, 9), (3, 4, 9)),
        ((4, 8), (3, 4, 8), (2, 4, 8)),
        ((4, 8), (0, 4, 8), (0, 4, 8)),
    ],
)
def test_shapes_that_do_not_fit_are_refused(q, k, v):
    with pytest.raises(ValueError, match=r"fit|undefined"):
        attention(torch.zeros(q), torch.zeros(k), torch.zeros(v))


def make(*slabs):
    """A store that has grown by so many chunks at a time."""
    store = ChunkStore(4, 2, 16, torch.float32, "cpu")
    for capacity in itertools.accumulate(slabs):
        store.grow(capacity)
    return store


def ids(*values):
    return np.array(values, np.int64)


def test_runs_end_where_ids_or_slabs_are_not_consecutive():
    store = make(4, 4)
    runs = [(r.slab, r.start, r.chunks, r.begin) for r in store.runs(ids(1, 2, 3, 4, 5, 7, 6, 0))]
    assert runs == [(0, 1, 3, 0), (1, 0, 2, 3), (1, 3, 1, 5), (1, 2, 1, 6), (0, 0, 1, 7)]
    assert list(store.runs(ids())) == []


@pytest.mark.parametrize("chunk", [-1, 4])
def test_ids_beyond_the_capacity_are_refused(chunk):
    with pytest.raises(IndexError, match="chunks 0 to 3"):
        make(4).locate(ids(chunk))


CPU = torch.device("cpu")


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("half", [False, True])
def test_both_kinds_of_products_agree_with_float64(half, dtype, add):
    torch.manual_seed(0)
    scratch = Scratch(CPU)
    products = HalfProducts(0.25, scratch, 16, dtype) if half else Products(0.25, scratch, 16, loads=True)
    q, k, v = torch.randn(3, 2, 16).to(dtype), torch.randn(3, 5, 16).to(dtype), torch.randn(3, 5, 16).to(dtype)
    scores = torch.full((3, 2, 5), torch.nan)
    products.scores(scores, q.to(products.dtype), products.load(k))
    tolerance = {"rtol": 1e-2, "atol": 2e-2} if half else {"rtol": 1e-5, "atol": 1e-5}
    expected = 0.25 * q.double() @ k.double().transpose(1, 2)
    torch.testing.assert_close(scores.double(), expected, **tolerance)
    out = torch.ones(3, 2, 16) if add else torch.full((3, 2, 16), torch.nan)
    products.outputs(out, scores, products.load(v), add=add)
    expected = expected @ v.double() + (1 if add else 0)
    torch.testing.assert_close(out.double(), expected, **tolerance)


def test_float16_scores_overflow_only_if_the_scaled_score_does():
    products = HalfProducts(1 / 16, Scratch(CPU), 256, torch.float16)
    q, k = torch.full((1, 1, 256), 30.0).half(), torch.full((1, 1, 256), 30.0).half()
    scores = torch.empty(1, 1, 1)
    products.scores(scores, q, k)  # 230400 before scaling, beyond 65504
    assert scores.item() == pytest.approx(14400, rel=1e-3)
