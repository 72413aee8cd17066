from __future__ import annotations

import pytest
import torch

from chunkbench.kernels import cpu
from chunkbench.kernels.cpu.store import PackedStore
from chunkbench.kernels.eight_bits import NUMBERS, narrow, rounded, stored, widen
from chunkbench.kv_dtype import KV_DTYPES, KvDtype, kv_bytes

EIGHT = [form for form in KV_DTYPES if form != "same"]
NATIVE = pytest.mark.skipif(cpu.native() is None, reason=cpu.why_missing())


def vectors() -> torch.Tensor:
    """Ordinary vectors, and those that a quotient or a maximum could get wrong: [token, head, d]."""
    x = torch.randn(16, 3, 32, generator=torch.Generator().manual_seed(1))
    x[1] = 0
    x[2] *= 1e-38
    x[3] *= 1e-42  # denormal
    x[4] *= 1e38
    x[5] = x[5, 0, 0]  # all equal
    x[6] = x[6].abs() + 1000
    x[7, :, 3] = 3e38
    x[8, :, 1] = -3e38
    x[9] = torch.arange(-16, 16) * 127 / 31  # ties
    return x


@pytest.mark.parametrize("kv_dtype", EIGHT)
def test_what_is_stored_is_near_what_was_given(kv_dtype: KvDtype) -> None:
    x = vectors()[[0, 1, 4, 5, 9, 10]]
    if kv_dtype == "fp8":
        x = x.clamp(-448, 448)
        error = (stored(x, kv_dtype) - x.double()).abs()
        assert (error <= (x.double().abs() / 16).clamp(min=2.0**-10)).all()
        return
    span = x.abs().amax(-1) * 2 if kv_dtype == "int8" else x.amax(-1) - x.amin(-1)
    error = (stored(x, kv_dtype) - x.double()).abs().amax(-1)
    assert (error <= span.double() / 254 * 0.51 + 1e-6 * x.abs().amax(-1)).all()


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_bytes_of_a_vector_and_back(kv_dtype: KvDtype) -> None:
    x = vectors()
    raw = narrow(x, kv_dtype)
    assert 2 * raw[0, 0].nbytes == kv_bytes(32, 4, kv_dtype)
    torch.testing.assert_close(
        widen(raw, kv_dtype, torch.empty_like(x)).double(), stored(x, kv_dtype), rtol=1e-6, atol=1e-44
    )


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kv_dtype", EIGHT)
def test_a_bad_number_is_not_hidden(kv_dtype: KvDtype, bad: float) -> None:
    x = torch.ones(2, 32)
    x[1, 5] = bad
    kept = stored(x, kv_dtype)
    assert kept[0].isfinite().all()
    if kv_dtype == "fp8" and bad == bad:
        assert kept[1, 5].abs() == 448  # saturates, as in vLLM
    else:
        assert kept[1].isnan().any()


@NATIVE
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kv_dtype", EIGHT)
def test_the_native_store_rounds_alike(kv_dtype: KvDtype, dtype: torch.dtype) -> None:
    x = vectors()
    x[11, 0, 0], x[12, 1, 2], x[13, 2, 31] = torch.nan, torch.inf, -torch.inf
    x = x.to(dtype)
    store = PackedStore(16, 3, 32, dtype, kv_dtype=kv_dtype)
    store.grow(1)
    store.fill(torch.zeros(1, dtype=torch.int64).numpy(), x, x.flip(0))
    head = store.slabs[0].keys[0, 0].view(torch.uint8)
    numbers, scale, zero = rounded(x, kv_dtype)
    packed = (
        head[:, : 16 * 32].view(NUMBERS[kv_dtype]).view(3, 32, 16).permute(2, 0, 1)
    )  # a full block: [head][d][token]
    assert torch.equal(packed.view(torch.uint8), numbers.view(torch.uint8))
    of_keys = head[:, 2 * 16 * 32 :].contiguous().view(torch.float32)
    if kv_dtype != "fp8":
        torch.testing.assert_close(of_keys[:, :16].T, scale[..., 0], rtol=0, atol=0, equal_nan=True)
    if kv_dtype == "uint8":
        torch.testing.assert_close(of_keys[:, 16:32].T, zero[..., 0], rtol=0, atol=0)
