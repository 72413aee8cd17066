"""The FlashInfer adapters.

A stand-in computes attention from the index arrays that the adapters plan with. If the real package is installed, the
arguments of every call are bound to its signatures.
"""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from chunkbench.baselines import flash_attn_3, flash_attn_package, flashinfer_
from chunkbench.baselines.registry import REGISTRY
from chunkbench.bench.contract import Implementation
from chunkbench.bench.workers.inputs import PooledInputs
from tests.baselines.checked import TREE, attend, bound, check, inputs_of, make_point, points, signature

NAMES = ("flashinfer_paged", "flashinfer_cascade", "flashinfer_cascade_fa3", "flashinfer_flat")


class Requests:
    """The work of both wrappers, in simple code: attention of ranges of query rows over pages."""

    def planned(self, qo: Any, kv: Any, indices: Any, last: Any, heads: int, kv_heads: int, d: int, page: int) -> None:
        for indptr in (qo, kv, indices, last):
            assert indptr.dtype == torch.int32
            assert indptr.device.type == "cpu"  # for a GPU tensor the library would wait for the GPU
        assert len(qo) == len(kv) == len(last) + 1
        self.qo, self.kv, self.indices, self.last, self.page = qo, kv, indices, last, page
        self.sizes = (heads, kv_heads, d)

    def run(self, q: Any, cache: Any, out: Any, lse: Any = None) -> None:
        k, v = (x.flatten(0, 1) for x in cache)
        assert q.shape == out.shape
        assert q.shape[1:] == (self.sizes[0], self.sizes[2])
        assert cache[0].shape[1:] == (self.page, *self.sizes[1:])
        assert len(q) == self.qo[-1]
        for request, last in enumerate(self.last.tolist()):
            rows = slice(int(self.qo[request]), int(self.qo[request + 1]))
            pages = self.indices[int(self.kv[request]) : int(self.kv[request + 1])].long()
            slots = (pages[:, None] * self.page + torch.arange(self.page)).flatten()
            held = slots[: max(0, len(pages) - 1) * self.page + last]
            out[rows], request_lse = attend(q[rows], k[held], v[held])
            if lse is not None:
                lse[rows] = request_lse


def stand_in(signatures: dict[str, inspect.Signature]) -> SimpleNamespace:
    """A library with the same names; every call is bound to the signature of its name, if there is one."""

    class Decode:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            bound(signatures.get("decode.__init__"), lambda *a, **k: None)(self, *args, **kwargs)
            self.requests = Requests()

        def plan(self, *args: Any, **kwargs: Any) -> None:
            bound(signatures.get("decode.plan"), lambda *a, **k: None)(self, *args, **kwargs)
            bound(signatures.get("decode._plan_impl"), lambda *a, **k: None)(self, *args, **kwargs)
            indptr, indices, last, *sizes = args
            self.requests.planned(torch.arange(len(indptr), dtype=torch.int32), indptr, indices, last, *sizes)

        def run(self, *args: Any, **kwargs: Any) -> None:
            bound(signatures.get("decode.run"), lambda *a, **k: None)(self, *args, **kwargs)
            self.requests.run(*args, **kwargs)

    class Prefill:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            bound(signatures.get("prefill.__init__"), lambda *a, **k: None)(self, *args, **kwargs)
            self.requests = Requests()

        def plan(self, *args: Any, causal: bool, **kwargs: Any) -> None:
            bound(signatures.get("prefill.plan"), lambda *a, **k: None)(self, *args, causal=causal, **kwargs)
            assert not causal
            self.requests.planned(*args)

        def run(self, *args: Any, return_lse: bool, **kwargs: Any) -> None:
            bound(signatures.get("prefill.run"), lambda *a, **k: None)(self, *args, return_lse=return_lse, **kwargs)
            assert return_lse
            self.requests.run(*args, **kwargs)

    def merge_state_in_place(v: Any, s: Any, v_other: Any, s_other: Any) -> None:
        weight = torch.sigmoid((s_other - s).double() * torch.log(torch.tensor(2.0)))[..., None]
        v.copy_(torch.lerp(v.double(), v_other.double(), weight))
        s.copy_(torch.logaddexp2(s.double(), s_other.double()))

    def merge_states(v: Any, s: Any) -> tuple[torch.Tensor, torch.Tensor]:
        assert v.shape[:3] == s.shape
        assert s.dtype == torch.float32
        weights = torch.softmax(s.double() * torch.log(torch.tensor(2.0)), 1)[..., None]
        return (weights * v.double()).sum(1).to(v.dtype), torch.logsumexp(s, 1)

    return SimpleNamespace(
        BatchDecodeWithPagedKVCacheWrapper=Decode,
        BatchPrefillWithPagedKVCacheWrapper=Prefill,
        merge_state_in_place=bound(signatures.get("merge_state_in_place"), merge_state_in_place),
        merge_states=bound(signatures.get("merge_states"), merge_states),
    )


@points()
@pytest.mark.parametrize("name", NAMES)
def test_the_planned_and_merged_calls_compute_attention(
    name: str,
    axes: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flashinfer_, "library", lambda: stand_in({}))
    inputs = inputs_of(**axes)
    check(REGISTRY.load(name).prepare(inputs), inputs)


@pytest.mark.parametrize("name", NAMES)
def test_every_call_matches_the_real_packages_signatures(
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    signatures = {
        f"{module}.{method}": signature("flashinfer", f"{module}.py", f"{wrapper}.{method}")
        for module, wrapper, methods in (
            ("decode", "BatchDecodeWithPagedKVCacheWrapper", ("__init__", "plan", "_plan_impl", "run")),
            ("prefill", "BatchPrefillWithPagedKVCacheWrapper", ("__init__", "plan", "run")),
        )
        for method in methods
    }
    for merge in ("merge_state_in_place", "merge_states"):
        signatures[merge] = signature("flashinfer", "cascade.py", merge)
    monkeypatch.setattr(flashinfer_, "library", lambda: stand_in(signatures))
    inputs = inputs_of(**TREE)
    check(REGISTRY.load(name).prepare(inputs), inputs)


@pytest.mark.parametrize("name", NAMES)
def test_a_shared_prefix_is_held_once(
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flashinfer_, "library", lambda: stand_in({}))
    point = make_point(n_p=320, n_s=320, batch_size=8, n_c=2)
    assert REGISTRY.load(name).prepare(PooledInputs(point, seed=1)).kv_bytes() == 320 * point.token_bytes


def test_points_that_flashinfer_refuses_are_unsupported() -> None:
    supports = REGISTRY.load("flashinfer_flat").supports
    assert supports(make_point(dtype="bfloat16")).ok
    assert not supports(make_point()).ok
    assert not supports(make_point(dtype="float16", head_dim=96)).ok


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
