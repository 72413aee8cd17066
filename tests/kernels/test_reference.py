import math

import pytest
import torch

from chunkbench.kernels.reference import attention


def attention_in_python(q, k, v, scale):
    """Attention in plain Python floats, one head at a time."""
    group = len(q) // len(k[0])
    out = []
    for head, query in enumerate(q):
        kv = head // group
        scores = [scale * math.fsum(a * b for a, b in zip(query, token[kv], strict=True)) for token in k]
        top = max(scores)
        weights = [math.exp(score - top) for score in scores]
        total = math.fsum(weights)
        out.append(
            [
                math.fsum(w * token[kv][i] for w, token in zip(weights, v, strict=True)) / total
                for i in range(len(query))
            ]
        )
    return torch.tensor(out, dtype=torch.float64)


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2), (3, 1)])
def test_agrees_with_plain_python(heads, kv_heads):
    torch.manual_seed(heads)
    q, k, v = torch.randn(heads, 8), torch.randn(5, kv_heads, 8), torch.randn(5, kv_heads, 8)
    expected = attention_in_python(q.tolist(), k.tolist(), v.tolist(), 8**-0.5)
    assert attention(q, k, v).dtype == torch.float64
    torch.testing.assert_close(attention(q, k, v), expected, rtol=1e-13, atol=1e-13)
    expected = attention_in_python(q.tolist(), k.tolist(), v.tolist(), 3.0)
    torch.testing.assert_close(attention(q, k, v, scale=3.0), expected, rtol=1e-13, atol=1e-13)


def test_several_queries():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 6, 16), torch.randn(7, 2, 16), torch.randn(7, 2, 16)
    complete = attention(q, k, v)
    assert complete.shape == (3, 6, 16)
    for row in range(3):
        torch.testing.assert_close(complete[row], attention(q[row], k, v))


def test_huge_scores_do_not_overflow():
    q = torch.full((1, 16), 1e150, dtype=torch.float64)
    k = torch.tensor([1e150, -1e150, 0.9e150], dtype=torch.float64)[:, None, None].expand(3, 1, 16)
    v = torch.arange(3.0)[:, None, None].expand(3, 1, 16)
    assert attention(q, k, v).tolist() == [[0.0] * 16]


def test_infinite_scores_follow_the_limits():
    q = torch.ones(1, 16)
    k = torch.zeros(4, 1, 16)
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
