"""Adapters of FlashInfer, FlashAttention's packages and xformers.

Stand-ins take the libraries' places; they compute attention from what the adapters pass. Where the real package is
installed, the arguments of every call are also bound to its signatures.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from chunkbench.baselines import xformers_
from chunkbench.baselines.registry import REGISTRY
from chunkbench.bench.contract import supported
from chunkbench.kernels.reference import attention
from tests.baselines.checked import DRAFTS, attend, bound, check, importable, inputs_of, make_point, points, signature

FLASHINFER = ("flashinfer_paged", "flashinfer_cascade", "flashinfer_cascade_fa3", "flashinfer_flat")
FP8: dict[str, Any] = {"kv_dtype": "fp8", "dtype": "bfloat16", "kv_heads": 2}


class Requests:
    """The work of both wrappers, in simple code: attention of ranges of query rows over pages."""

    def planned(self, qo: Any, kv: Any, indices: Any, last: Any, heads: int, kv_heads: int, d: int, page: int) -> None:
        for indptr in (qo, kv, indices, last):
            assert indptr.dtype == torch.int32
            assert indptr.device.type == "cpu"  # for a GPU tensor the library would wait for the GPU
        assert len(qo) == len(kv) == len(last) + 1
        self.qo, self.kv, self.indices, self.last, self.page = qo, kv, indices, last, page
        self.sizes, self.masks = (heads, kv_heads, d), None

    def masked(self, causal: bool, custom_mask: torch.Tensor | None) -> None:
        """The mask of each request: rows are the last tokens, or a bit for each row and token."""
        rows, held = self.qo.diff().tolist(), (self.kv.diff() - 1) * self.page + self.last
        shapes = list(zip(rows, held.tolist(), strict=True))
        if custom_mask is not None:
            assert not causal  # which would not count
            parts = custom_mask.split([row * tokens for row, tokens in shapes])
            self.masks = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
        elif causal:
            self.masks = [torch.ones(shape).tril(shape[1] - shape[0]).bool() for shape in shapes]

    def typed(self, q_data_type: torch.dtype, kv_data_type: torch.dtype) -> None:
        self.dtypes = q_data_type, kv_data_type

    def run(self, q: Any, cache: Any, out: Any, lse: Any = None) -> None:
        assert (q.dtype, cache[0].dtype, cache[1].dtype) == (*self.dtypes, self.dtypes[1])
        # Eight bits are read with a scale of 1. PyTorch cannot index them on a CPU.
        k, v = (x.flatten(0, 1).to(q.dtype) for x in cache)
        assert q.shape == out.shape
        assert q.shape[1:] == (self.sizes[0], self.sizes[2])
        assert cache[0].shape[1:] == (self.page, *self.sizes[1:])
        assert len(q) == self.qo[-1]
        for request, last in enumerate(self.last.tolist()):
            rows = slice(int(self.qo[request]), int(self.qo[request + 1]))
            pages = self.indices[int(self.kv[request]) : int(self.kv[request + 1])].long()
            slots = (pages[:, None] * self.page + torch.arange(self.page)).flatten()
            held = slots[: max(0, len(pages) - 1) * self.page + last]
            if self.masks is not None:
                out[rows] = attention(q[rows], k[held], v[held], None, self.masks[request]).to(out.dtype)
                continue
            out[rows], request_lse = attend(q[rows], k[held], v[held])
            if lse is not None:
                lse[rows] = request_lse


def bind(file: str, name: str, *args: Any, **kwargs: Any) -> None:
    """Bind arguments to a signature of FlashInfer, if it is installed."""
    bound(signature("flashinfer", file, name), lambda *_, **__: None)(*args, **kwargs)


class Decode:
    name = "BatchDecodeWithPagedKVCacheWrapper"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        bind("decode.py", f"{self.name}.__init__", self, *args, **kwargs)
        self.requests = Requests()

    def plan(self, *args: Any, **kwargs: Any) -> None:
        for method in ("plan", "_plan_impl"):
            bind("decode.py", f"{self.name}.{method}", self, *args, **kwargs)
        indptr, indices, last, *sizes = args
        self.requests.planned(torch.arange(len(indptr), dtype=torch.int32), indptr, indices, last, *sizes)
        self.requests.typed(**kwargs)

    def run(self, *args: Any, **kwargs: Any) -> None:
        bind("decode.py", f"{self.name}.run", self, *args, **kwargs)
        self.requests.run(*args, **kwargs)


class Prefill:
    name = "BatchPrefillWithPagedKVCacheWrapper"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        bind("prefill.py", f"{self.name}.__init__", self, *args, **kwargs)
        self.requests = Requests()

    def plan(self, *args: Any, causal: bool, custom_mask: torch.Tensor | None = None, **kwargs: Any) -> None:
        bind("prefill.py", f"{self.name}.plan", self, *args, causal=causal, custom_mask=custom_mask, **kwargs)
        self.requests.planned(*args)
        self.requests.masked(causal, custom_mask)
        self.requests.typed(**kwargs)

    def run(self, *args: Any, return_lse: bool = False, **kwargs: Any) -> None:
        bind("prefill.py", f"{self.name}.run", self, *args, return_lse=return_lse, **kwargs)
        assert return_lse == ("lse" in kwargs)
        self.requests.run(*args, **kwargs)


def merge_state_in_place(*args: Any) -> None:
    bind("cascade.py", "merge_state_in_place", *args)
    v, s, v_other, s_other = args
    weight = torch.sigmoid((s_other - s).double() * torch.log(torch.tensor(2.0)))[..., None]
    v.copy_(torch.lerp(v.double(), v_other.double(), weight))
    s.copy_(torch.logaddexp2(s.double(), s_other.double()))


def merge_states(v: Any, s: Any) -> tuple[torch.Tensor, torch.Tensor]:
    bind("cascade.py", "merge_states", v, s)
    assert v.shape[:3] == s.shape
    assert s.dtype == torch.float32
    weights = torch.softmax(s.double() * torch.log(torch.tensor(2.0)), 1)[..., None]
    return (weights * v.double()).sum(1).to(v.dtype), torch.logsumexp(s, 1)


STAND_IN = SimpleNamespace(
    BatchDecodeWithPagedKVCacheWrapper=Decode,
    BatchPrefillWithPagedKVCacheWrapper=Prefill,
    merge_state_in_place=merge_state_in_place,
    merge_states=merge_states,
)


@points()
@pytest.mark.parametrize("name", FLASHINFER)
def test_flashinfers_planned_and_merged_calls_compute_attention(name: str, axes: dict[str, Any]) -> None:
    inputs = inputs_of(**axes)
    with importable(flashinfer=STAND_IN):
        check(REGISTRY.load(name).prepare(inputs), inputs)


@pytest.mark.parametrize(
    "axes", [FP8, FP8 | {"dtype": "float16", "n_p": (50, 90)}], ids=["bfloat16", "ragged, float16"]
)
@pytest.mark.parametrize("name", [name for name in FLASHINFER if not name.endswith("fa3")])
def test_flashinfer_reads_fp8_beside_queries_of_16_bits(name: str, axes: dict[str, Any]) -> None:
    inputs = inputs_of(**axes)
    implementation = REGISTRY.load(name)
    assert supported(implementation, inputs.point).ok
    with importable(flashinfer=STAND_IN):
        check(implementation.prepare(inputs), inputs)


@pytest.mark.parametrize("axes", DRAFTS.values(), ids=DRAFTS.keys())
def test_flashinfers_prefill_verifies_drafts(axes: dict[str, Any]) -> None:
    inputs, implementation = inputs_of(**axes), REGISTRY.load("flashinfer_paged")
    assert supported(implementation, inputs.point).reason == "FlashInfer takes float16 or bfloat16"
    with importable(flashinfer=STAND_IN):
        check(implementation.prepare(inputs), inputs)


def test_flashinfers_fa3_refuses_fp8() -> None:
    answer = supported(REGISTRY.load("flashinfer_cascade_fa3"), make_point(**FP8))
    assert answer.reason == "stores K and V as same, not as fp8"


@pytest.mark.parametrize("name", FLASHINFER)
def test_flashinfer_holds_a_shared_prefix_once(name: str) -> None:
    inputs = inputs_of(n_p=320, n_s=320, batch_size=8, n_c=2)
    with importable(flashinfer=STAND_IN):
        assert REGISTRY.load(name).prepare(inputs).kv_bytes() == 320 * inputs.point.token_bytes


FLASH_ATTENTION = {
    "flash_attn_package": ("flash_attn", "flash_attn_interface.py"),
    "flash_attn_package_paged": ("flash_attn", "flash_attn_interface.py"),
    "flash_attn_3": ("fa3_fwd_interface", ""),
}
"""Implementation -> the package that it imports, and the file of its function."""


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
@pytest.mark.parametrize("name", FLASH_ATTENTION)
def test_flash_attentions_call_computes_attention(name: str, axes: dict[str, Any]) -> None:
    package, file = FLASH_ATTENTION[name]
    real = signature(package, file, "flash_attn_with_kvcache")
    inputs = inputs_of(**axes)
    with importable(**{package: SimpleNamespace(flash_attn_with_kvcache=bound(real, with_kvcache))}):
        check(REGISTRY.load(name).prepare(inputs), inputs)


def test_fa3_fwd_is_built_as_the_adapter_says() -> None:
    """The real package's build record: without float16 and pages, with splits and packed groups."""
    config = pytest.importorskip("fa3_fwd_config", reason="fa3-fwd is not installed here")
    flags = config.CONFIG["build_flags"]
    assert flags["FLASHATTENTION_DISABLE_FP16"]
    assert flags["FLASHATTENTION_DISABLE_PAGEDKV"]
    assert not flags["FLASHATTENTION_DISABLE_SPLIT"]
    assert not flags["FLASHATTENTION_DISABLE_PACKGQA"]


def named(name: str, *reasons: str) -> Any:
    """An operator of xformers, and why it does not take a point."""
    return SimpleNamespace(NAME=name, not_supported_reasons=lambda inputs: list(reasons))


def forward(expected: Any) -> Callable[..., torch.Tensor]:
    """memory_efficient_attention_forward of q `[b, 1, h, d]` or `[b, 1, h_kv, group, d]`; K and V have q's heads."""

    def call(query: Any, key: Any, value: Any, *, op: Any) -> torch.Tensor:
        assert op is expected
        assert query.ndim == key.ndim
        assert query.shape[2:] == key.shape[2:] == value.shape[2:]
        rows = [attend(*(x[row].flatten(1, -2) for x in (query, key, value)))[0] for row in range(len(query))]
        return torch.stack(rows).reshape(query.shape)

    return bound(signature("xformers", "ops/fmha/__init__.py", "memory_efficient_attention_forward"), call)


@pytest.mark.parametrize(
    "axes", [{}, {"kv_heads": 2}, {"batch_size": 1}], ids=["equal", "grouped heads", "one sequence"]
)
def test_xformers_call_computes_attention(axes: dict[str, Any]) -> None:
    chosen = named("triton_splitKF")
    modules = dict.fromkeys(("cutlass", "flash", "flash3", "triton_splitk"), SimpleNamespace(FwOp=chosen))
    library = SimpleNamespace(memory_efficient_attention_forward=forward(chosen), Inputs=None, **modules)
    inputs = inputs_of(**axes)
    with importable(**dict.fromkeys(("xformers", "xformers.ops", "xformers.ops.fmha"), library)):
        check(xformers_.XformersSession(inputs, chosen), inputs)


@pytest.mark.filterwarnings("ignore")
def test_the_real_xformers_has_the_preferred_operators() -> None:
    pytest.importorskip("xformers", reason="xformers is not installed here")
    library = xformers_.library()
    q, k = torch.empty(1, 1, 2, 64, dtype=torch.float16), torch.empty(1, 8, 2, 64, dtype=torch.float16)
    assert xformers_.operator(library, q, k) is None  # all operators refuse CPU tensors
    names = [op.NAME for op in library.operators]
    assert all(any(name.startswith(start) for name in names) for start in ("triton_splitKF", "fa3F", "fa2F"))
    for op in library.operators:
        assert op.not_supported_reasons(library.inputs(q, k, k))


def test_operators_that_split_the_context_come_first() -> None:
    q, k = torch.empty(1, 1, 2, 64), torch.empty(1, 8, 2, 64)

    def chosen(*operators: Any) -> str | None:
        library = SimpleNamespace(operators=operators, inputs=lambda q, k, v: None)
        best = xformers_.operator(library, q, k)
        return None if best is None else str(best.NAME)

    cutlass, flash, split = named("cutlassF-pt"), named("fa2F@2.8-pt"), named("triton_splitKF")
    assert chosen(cutlass, flash, split) == "triton_splitKF"
    assert chosen(cutlass, flash) == "fa2F@2.8-pt"
    assert chosen(cutlass, named("triton_splitKF", "too old")) == "cutlassF-pt"
    assert chosen(named("fa3F@3", "not built")) is None
    assert chosen(named("fa3F@3"), named("fa3F_splitKV@3")) == "fa3F_splitKV@3"
