"""flash-attn and fa3-fwd: a stand-in computes the adapters' one call, and the call is bound to the real signatures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from chunkbench.baselines import flash_attn_3, flash_attn_package
from chunkbench.bench.contract import Implementation
from tests.baselines.checked import attend, bound, check, inputs_of, make_point, points, signature

DENSE = (flash_attn_package, flash_attn_package.FlashAttnPackage, "flash_attn", "flash_attn_interface.py")
PAGED = (flash_attn_package, flash_attn_package.FlashAttnPackagePaged, "flash_attn", "flash_attn_interface.py")
THIRD = (flash_attn_3, flash_attn_3.FlashAttn3, "fa3_fwd_interface", "")
ADAPTERS = {"flash_attn_package": DENSE, "flash_attn_package_paged": PAGED, "flash_attn_3": THIRD}


def with_kvcache(
    q: Any, k_cache: Any, v_cache: Any, cache_seqlens: Any = None, block_table: Any = None
) -> torch.Tensor:
    """Attention of q `[b, 1, h, d]` over a dense cache `[b, n, h_kv, d]` or pages `[blocks, size, h_kv, d]`."""
    out = torch.empty_like(q)
    for row in range(len(q)):
        n = k_cache.shape[1] if cache_seqlens is None else int(cache_seqlens[row])
        if cache_seqlens is not None:
            assert cache_seqlens.dtype == torch.int32
        if block_table is None:
            k, v = k_cache[row, :n], v_cache[row, :n]
        else:
            assert block_table.dtype == torch.int32
            assert block_table.stride(-1) == 1
            pages = block_table[row].long()
            k, v = k_cache[pages].flatten(0, 1)[:n], v_cache[pages].flatten(0, 1)[:n]
        assert len(k) == n
        out[row] = attend(q[row], k, v)[0]
    return out


@points()
@pytest.mark.parametrize(("module", "adapter", "package", "file"), ADAPTERS.values(), ids=ADAPTERS.keys())
def test_the_adapters_call_computes_attention(
    module: Any,
    adapter: type[Implementation],
    package: str,
    file: str,
    axes: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = SimpleNamespace(flash_attn_with_kvcache=with_kvcache)
    monkeypatch.setattr(module, "library", lambda: library)
    inputs = inputs_of(**axes)
    check(adapter().prepare(inputs), inputs)


@pytest.mark.parametrize("axes", [{}, {"n_p": (50, 90)}], ids=["equal", "ragged"])
@pytest.mark.parametrize(("module", "adapter", "package", "file"), ADAPTERS.values(), ids=ADAPTERS.keys())
def test_the_call_matches_the_real_packages_signature(
    module: Any,
    adapter: type[Implementation],
    package: str,
    file: str,
    axes: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = signature(package, file, "flash_attn_with_kvcache")
    library = SimpleNamespace(flash_attn_with_kvcache=bound(real, with_kvcache))
    monkeypatch.setattr(module, "library", lambda: library)
    inputs = inputs_of(**axes)
    check(adapter().prepare(inputs), inputs)


def test_flash_attn_takes_only_pages_of_a_multiple_of_256_tokens() -> None:
    paged = flash_attn_package.FlashAttnPackagePaged()
    assert paged.supports(make_point(dtype="float16", block_size=512)).ok
    refused = paged.supports(make_point(dtype="float16", block_size=16))
    assert (refused.ok, refused.remedy) == (False, "set block_size: 256")


def test_dtypes_and_head_sizes_that_the_libraries_refuse_are_unsupported() -> None:
    second, third = flash_attn_package.FlashAttnPackage(), flash_attn_3.FlashAttn3()
    assert [second.supports(make_point(dtype=d)).ok for d in ("float32", "float16", "bfloat16")] == [False, True, True]
    assert [third.supports(make_point(dtype=d)).ok for d in ("float32", "float16", "bfloat16")] == [False, False, True]
    assert not second.supports(make_point(dtype="float16", head_dim=512)).ok
    assert not third.supports(make_point(dtype="bfloat16", head_dim=68)).ok


def test_fa3_fwd_is_built_as_the_adapter_says() -> None:
    """The real package's build record: without float16 and pages, with splits and packed groups."""
    config = pytest.importorskip("fa3_fwd_config", reason="fa3-fwd is not installed here")
    flags = config.CONFIG["build_flags"]
    assert flags["FLASHATTENTION_DISABLE_FP16"]
    assert flags["FLASHATTENTION_DISABLE_PAGEDKV"]
    assert not flags["FLASHATTENTION_DISABLE_SPLIT"]
    assert not flags["FLASHATTENTION_DISABLE_PACKGQA"]
