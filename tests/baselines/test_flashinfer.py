"""The FlashInfer adapters.

A stand-in computes attention from the index arrays that the adapters plan with. If the real package is installed, the
arguments of every call are bound to its signatures.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from chunkbench.baselines import flashinfer_
from chunkbench.baselines.contract import Implementation, Session
from chunkbench.experiment.point import Point
from chunkbench.workers.inputs import PooledInputs

Attend = Callable[..., tuple[torch.Tensor, torch.Tensor]]
Bind = Callable[[inspect.Signature | None, Callable[..., Any]], Callable[..., Any]]
CLASSES = [
    flashinfer_.FlashInferPaged,
    flashinfer_.FlashInferCascade,
    flashinfer_.FlashInferCascadeFa3,
    flashinfer_.FlashInferFlat,
]
POINTS: dict[str, dict[str, Any]] = {
    "part shared": {},
    "rewound inside a block": {"n_p": 66, "n_c": 5},
    "nothing shared": {"n_s": 0},
    "everything shared": {"n_s": 70},
    "everything shared, whole blocks": {"n_p": 64, "n_s": 64},
    "one sequence": {"batch_size": 1},
    "grouped heads": {"kv_heads": 2},
    "many heads in a group": {"kv_heads": 1, "heads": 5},
    "two prompts alternating": {"prompts": 2},
    "tree": {"n_s": None, "n_p": 64, "tree": ((32, ((16, 2), (20, 1))), (48, 1))},
    "ragged": {"n_p": (50, 90)},
    "other blocks": {"block_size": 32},
    "float16": {"dtype": "float16"},
}


class Requests:
    """The work of both wrappers, in simple code: attention of ranges of query rows over pages."""

    def __init__(self, attend: Attend) -> None:
        self.attend = attend

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
            out[rows], request_lse = self.attend(q[rows], k[held], v[held])
            if lse is not None:
                lse[rows] = request_lse


def stand_in(attend: Attend, bind: Bind, signatures: dict[str, inspect.Signature]) -> SimpleNamespace:
    """A library with the same names; every call is bound to the signature of its name, if there is one."""

    class Decode:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            bind(signatures.get("decode.__init__"), lambda *a, **k: None)(self, *args, **kwargs)
            self.requests = Requests(attend)

        def plan(self, *args: Any, **kwargs: Any) -> None:
            bind(signatures.get("decode.plan"), lambda *a, **k: None)(self, *args, **kwargs)
            bind(signatures.get("decode._plan_impl"), lambda *a, **k: None)(self, *args, **kwargs)
            indptr, indices, last, *sizes = args
            self.requests.planned(torch.arange(len(indptr), dtype=torch.int32), indptr, indices, last, *sizes)

        def run(self, *args: Any, **kwargs: Any) -> None:
            bind(signatures.get("decode.run"), lambda *a, **k: None)(self, *args, **kwargs)
            self.requests.run(*args, **kwargs)

    class Prefill:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            bind(signatures.get("prefill.__init__"), lambda *a, **k: None)(self, *args, **kwargs)
            self.requests = Requests(attend)

        def plan(self, *args: Any, causal: bool, **kwargs: Any) -> None:
            bind(signatures.get("prefill.plan"), lambda *a, **k: None)(self, *args, causal=causal, **kwargs)
            assert not causal
            self.requests.planned(*args)

        def run(self, *args: Any, return_lse: bool, **kwargs: Any) -> None:
            bind(signatures.get("prefill.run"), lambda *a, **k: None)(self, *args, return_lse=return_lse, **kwargs)
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
        merge_state_in_place=bind(signatures.get("merge_state_in_place"), merge_state_in_place),
        merge_states=bind(signatures.get("merge_states"), merge_states),
    )


@pytest.mark.parametrize("axes", POINTS.values(), ids=POINTS.keys())
@pytest.mark.parametrize("adapter", CLASSES, ids=lambda adapter: adapter.id)
def test_the_planned_and_merged_calls_compute_attention(
    adapter: type[Implementation],
    axes: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    make_point: Callable[..., Point],
    check_session: Callable[[Session, PooledInputs], None],
    partial_attention: Attend,
    binding: Bind,
) -> None:
    monkeypatch.setattr(flashinfer_, "library", lambda: stand_in(partial_attention, binding, {}))
    inputs = PooledInputs(make_point(**axes), seed=1)
    check_session(adapter().prepare(inputs), inputs)


@pytest.mark.parametrize("adapter", CLASSES, ids=lambda adapter: adapter.id)
def test_every_call_matches_the_real_packages_signatures(
    adapter: type[Implementation],
    monkeypatch: pytest.MonkeyPatch,
    make_point: Callable[..., Point],
    check_session: Callable[[Session, PooledInputs], None],
    partial_attention: Attend,
    binding: Bind,
    signature: Callable[[str, str, str], inspect.Signature],
) -> None:
    signatures = {
        f"{module}.{method}": signature("flashinfer", f"{module}.py", f"{wrapper}.{method}")
        for module, wrapper, methods in (
            ("decode", "BatchDecodeWithPagedKVCacheWrapper", ("__init__", "plan", "_plan_impl", "run")),
            ("prefill", "BatchPrefillWithPagedKVCacheWrapper", ("__init__", "plan", "run")),
        )
        for method in methods
    }
    for name in ("merge_state_in_place", "merge_states"):
        signatures[name] = signature("flashinfer", "cascade.py", name)
    monkeypatch.setattr(flashinfer_, "library", lambda: stand_in(partial_attention, binding, signatures))
    inputs = PooledInputs(make_point(n_s=None, tree=((32, ((16, 2), (20, 1))), (48, 1)), n_p=64), seed=1)
    check_session(adapter().prepare(inputs), inputs)


@pytest.mark.parametrize("adapter", CLASSES, ids=lambda adapter: adapter.id)
def test_a_shared_prefix_is_held_once(
    adapter: type[Implementation],
    monkeypatch: pytest.MonkeyPatch,
    make_point: Callable[..., Point],
    partial_attention: Attend,
    binding: Bind,
) -> None:
    monkeypatch.setattr(flashinfer_, "library", lambda: stand_in(partial_attention, binding, {}))
    point = make_point(n_p=320, n_s=320, batch_size=8, n_c=2)
    assert adapter().prepare(PooledInputs(point, seed=1)).kv_bytes() == 320 * point.token_bytes


def test_points_that_flashinfer_refuses_are_unsupported(make_point: Callable[..., Point]) -> None:
    supports = flashinfer_.FlashInferFlat().supports
    assert supports(make_point(dtype="bfloat16")).ok
    assert not supports(make_point()).ok
    assert not supports(make_point(dtype="float16", head_dim=96)).ok
