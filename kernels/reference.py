"""The reference: decode attention of one sequence in float64, written to be easy to read."""

from __future__ import annotations

import torch


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None = None) -> torch.Tensor:
    """softmax(q k^T * scale) v in float64.

    q is `[h, d]`, or `[b, h, d]` for b queries over the same context; k and v are `[n, h_kv, d]` with h % h_kv == 0,
    and query head i reads KV head i // (h / h_kv). `scale` is 1/sqrt(d) unless given.

    Finite scores of any size are exact to float64. A score of -inf gets weight zero. Scores of +inf share the whole
    weight evenly (the limit of equal scores that grow without bound). If every score is -inf, the softmax is undefined
    and the result is NaN. Raises ValueError if the shapes do not fit together.
    """
    if q.dim() not in (2, 3) or k.dim() != 3 or k.shape != v.shape or q.shape[-1] != k.shape[-1]:
        raise ValueError(f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not fit together")
    h, d = q.shape[-2:]
    n, h_kv, _ = k.shape
    if n == 0 or h_kv == 0 or h % h_kv != 0:
        raise ValueError(f"attention of {h} heads over {n} tokens with {h_kv} KV heads is undefined")
    keys, values = (both.double().repeat_interleave(h // h_kv, 1) for both in (k, v))
    scores = torch.einsum("...hd,nhd->...hn", q.double(), keys) * (d**-0.5 if scale is None else scale)
    top = scores.amax(-1, keepdim=True)
    weights = torch.where(top == torch.inf, (scores == torch.inf).double(), torch.exp(scores - top))
    weights = weights / weights.sum(-1, keepdim=True)
    return torch.einsum("...hn,nhd->...hd", weights, values)
