"""The products around latent attention: its two forms of queries, keys, values and outputs (`chunkbench.latent`)."""

from __future__ import annotations

import torch

from chunkbench.kernels.products import has_native_products
from chunkbench.latent import LatentShape


class Projections:
    """W_uk and W_uv of a layer. All results have the dtype and the device of the weights.

    If the processor has no products of this dtype, the products are computed in float32, because PyTorch's emulation is
    about 100 times slower.
    """

    def __init__(self, shape: LatentShape, w_uk: torch.Tensor, w_uv: torch.Tensor) -> None:
        """w_uk is `[h, nope, kv_rank]`, w_uv `[h, v, kv_rank]`."""
        self.shape = shape
        self.heads = len(w_uk)
        self.dtype, self.device = w_uk.dtype, w_uk.device
        native = has_native_products(self.dtype, self.device)
        self._type = self.dtype if native else torch.float32
        self._w_uk, self._w_uv = w_uk.to(self._type), w_uv.to(self._type)
        self._w_uv_transposed = self._w_uv.transpose(1, 2)

    def absorb(self, q: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """The absorbed queries `[b, h, kv_rank + rope]` of q `[b, h, nope + rope]`."""
        nope, rank = self.shape.nope, self.shape.kv_rank
        if out is None:
            out = torch.empty((*q.shape[:2], self.shape.width), dtype=self.dtype, device=self.device)
        by_head = q[..., :nope].transpose(0, 1).to(self._type)
        out[..., :rank] = torch.bmm(by_head, self._w_uk).transpose(0, 1)
        out[..., rank:] = q[..., nope:]
        return out

    def expand(self, latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K `[n, h, nope + rope]` and V `[n, h, v]` of latents `[n, kv_rank + rope]`."""
        shape, count = self.shape, len(latents)
        c, rotary = latents[:, : shape.kv_rank].to(self._type), latents[:, shape.kv_rank :]
        k = torch.empty((count, self.heads, shape.key_dim), dtype=self.dtype, device=self.device)
        k[..., : shape.nope] = (c @ self._w_uk.flatten(0, 1).T).view(count, self.heads, shape.nope)
        k[..., shape.nope :] = rotary[:, None]
        v = (c @ self._w_uv.flatten(0, 1).T).view(count, self.heads, shape.v)
        return k, v.to(self.dtype)

    def project(self, outputs: torch.Tensor) -> torch.Tensor:
        """W_uv times the outputs `[b, h, kv_rank]` of the absorbed form: `[b, h, v]`."""
        return torch.bmm(outputs.transpose(0, 1).to(self._type), self._w_uv_transposed).transpose(0, 1)
