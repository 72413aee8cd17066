"""The reference: decode attention of one sequence in float64, written to be easy to read."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from chunkbench.kernels.compensation import Compensation


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float | None = None,
    seen: torch.Tensor | None = None,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """softmax(q k^T * scale) v in float64.

    q is `[h, d]`, or `[b, h, d]` for b queries over the same context; k and v are `[n, h_kv, d]` with h % h_kv == 0,
    and query head i reads KV head i // (h / h_kv). v and the result may have another d. `scale` is
    1/sqrt(d) unless given. `seen` `[n]`, or `[b, n]`: whether a query reads each token; None: it reads all.
    `softcap`: a scaled score x becomes softcap * tanh(x / softcap); 0: it stays. `sinks` `[h]`: a score of each head
    without a V.

    Finite scores of any size are exact to float64. A score of -inf gets weight zero. Scores of +inf share the whole
    weight evenly (the limit of equal scores that grow without bound). If every score is -inf, the softmax is undefined
    and the result is NaN. Raises ValueError if the shapes do not fit together.
    """
    if (
        q.dim() not in (2, 3)
        or k.dim() != 3
        or k.shape[:2] != v.shape[:2]
        or v.dim() != 3
        or q.shape[-1] != k.shape[-1]
    ):
        raise ValueError(f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not fit together")
    h, d = q.shape[-2:]
    n, h_kv, _ = k.shape
    if n == 0 or h_kv == 0 or h % h_kv != 0:
        raise ValueError(f"attention of {h} heads over {n} tokens with {h_kv} KV heads is undefined")
    keys, values = (both.double().repeat_interleave(h // h_kv, 1) for both in (k, v))
    scores = torch.einsum("...hd,nhd->...hn", q.double(), keys) * (d**-0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if seen is not None:
        scores = scores.masked_fill(~(seen if seen.dim() == 1 else seen[:, None]), -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double().expand(scores.shape[:-1])[..., None]], -1)
    top = scores.amax(-1, keepdim=True)
    weights = torch.where(top == torch.inf, (scores == torch.inf).double(), torch.exp(scores - top))
    weights = (weights / weights.sum(-1, keepdim=True))[..., :n]
    return torch.einsum("...hn,nhd->...hd", weights, values)


def head_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, full: Sequence[bool], lost: slice, compensation: Compensation
) -> torch.Tensor:
    """Attention in float64 for KV heads that lost tokens (RazorAttention). Heads with `full[i]` keep all tokens; the
    others lost the tokens at the positions `lost`.

    q is `[h, d]`, of the last token. k and v are `[n, h_kv, d]`.
    """
    group, out = q.shape[0] // k.shape[1], []
    count = lost.stop - lost.start
    for head, is_full in enumerate(full):
        queries, keys, values = q[head * group : (head + 1) * group].double(), k[:, head].double(), v[:, head].double()
        bias = torch.zeros(len(k), dtype=torch.float64)
        if not is_full and count:
            seen = torch.cat([torch.arange(lost.start), torch.arange(lost.stop, len(k))])
            means = [both[lost].mean(0, keepdim=True) for both in (keys, values)]
            keys, values, bias = keys[seen], values[seen], bias[seen]
            if compensation != "none":
                weight = math.log(count) if compensation == "weighted" else 0.0
                keys, values = torch.cat([means[0], keys]), torch.cat([means[1], values])
                bias = torch.cat([torch.tensor([weight], dtype=torch.float64), bias])
        out.append((queries @ keys.T * q.shape[1] ** -0.5 + bias).softmax(-1) @ values)
    return torch.cat(out)
