"""Rows of a prompt in the native kernels: each reads the tokens up to its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from chunkbench.kernels import cpu
from chunkbench.kernels.cpu.decode import NativeDecode
from chunkbench.kernels.cpu.store import PackedStore
from chunkbench.kernels.items import PromptRows, items_of_prompts
from chunkbench.kernels.reference import attention

if cpu.native() is None:
    pytest.skip(cpu.why_missing(), allow_module_level=True)


@pytest.mark.parametrize("heads", [2, 33, 64, 80])  # from 64 on an item has room for the queries of one row only
def test_rows_of_many_heads_read_no_later_token(heads: int) -> None:
    tokens, chunk, dim = 50, 32, 16
    random = torch.Generator().manual_seed(heads)
    q = torch.randn(tokens, heads, dim, generator=random)
    k, v = torch.randn(2, tokens, 1, dim, generator=random)
    store = PackedStore(chunk, 1, dim, torch.float32)
    store.grow(2)
    store.fill(np.arange(2), k, v)
    kernel, out = NativeDecode(store, heads), torch.full_like(q, torch.nan)
    items, last_tokens = items_of_prompts([PromptRows(np.arange(2), 0, tokens)], chunk, 0)
    kernel.make(items, tokens)
    kernel.set_last_tokens(last_tokens)
    kernel.decode(q, out)
    expected = torch.stack([attention(q[row], k[: row + 1], v[: row + 1]) for row in range(tokens)])
    assert (out - expected).abs().max() < 1e-5
