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

from chunkbench.baselines import flashinfer_
from chunkbench.baselines.registry import REGISTRY
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
