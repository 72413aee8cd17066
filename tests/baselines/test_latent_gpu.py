"""Rows of latent attention on a GPU: stand-ins for FlashInfer's wrapper and FlashMLA compute the definition from what
the adapters pass. Where the real package is installed, the arguments are also bound to its signatures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from chunkbench.baselines import flashinfer_, on_gpu
from chunkbench.baselines.registry import REGISTRY
from chunkbench.bench.contract import supported
from tests.baselines.checked import TREE, bound, importable, signature
from tests.baselines.test_latent import DEEPSEEK, ODD, check, inputs_of

RANK, WIDTH = 512, 576
SCALE = (128 + 64) ** -0.5
"""DeepSeek's: of the dimension of a head's query before it is absorbed."""
SMALL: dict[str, Any] = {"latent": DEEPSEEK, "dtype": "bfloat16", "n_c": 3}
POINTS: dict[str, dict[str, Any]] = {
    "part shared": {},
    "begins a block": {"n_p": 63, "n_s": 63},
    "tree": TREE,
    "ragged, float16": {"n_p": (50, 140), "dtype": "float16"},
    "one sequence, many heads": {"batch_size": 1, "heads": 20},
    "projections": {"projections": "timed"},
}
ROWS = {"flashinfer_mla": {"block_size": 16}, "flashinfer_mla_fa3": {"block_size": 64}, "flash_mla": {"block_size": 64}}


def absorbed(q: torch.Tensor, latents: torch.Tensor, scale: float) -> torch.Tensor:
    """Attention of q `[h, 576]` over latents `[n, 576]`, whose first 512 numbers are V."""
    latents = latents.double()
    return (torch.softmax(q.double() @ latents.T * scale, -1) @ latents[:, :RANK]).to(q.dtype)


class Wrapper:
    """FlashInfer's BatchMLAPagedAttentionWrapper."""

    def __init__(self, workspace: torch.Tensor, backend: str) -> None:
        assert workspace.nbytes == 128 << 20
        self.backend = backend

    def plan(self, qo: Any, kv: Any, indices: Any, lengths: Any, *form: Any) -> None:
        for integers in (qo, kv, indices, lengths):
            assert integers.dtype == torch.int32
            assert integers.device.type == "cpu"  # for a GPU tensor the library would wait for the GPU
        assert qo.tolist() == list(range(len(lengths) + 1))
        assert len(indices) == kv[-1]
        heads, rank, rope, self.page, causal, self.scale, *self.dtypes = form
        assert (rank, rope, causal, self.scale) == (RANK, WIDTH - RANK, False, SCALE)
        self.heads, self.kv, self.indices, self.lengths = heads, kv.tolist(), indices.long(), lengths.tolist()

    def run(self, q: Any, q_rotary: Any, latents: Any, rotary: Any, out: torch.Tensor) -> None:
        assert q.shape == out.shape == (len(self.lengths), self.heads, RANK)
        assert self.dtypes == [q.dtype, latents.dtype]
        assert (out.dtype, q_rotary.dtype, rotary.dtype) == (q.dtype, q.dtype, latents.dtype)
        assert latents.shape[1:] == (self.page, RANK)
        for part in (q, q_rotary, latents, rotary, out):  # the kernels load 16 bytes at a time
            assert part.stride(-1) == 1
            assert part.storage_offset() % 8 == part.stride(0) % 8 == part.stride(1) % 8 == 0
        whole, wide = torch.cat([latents, rotary], -1), torch.cat([q, q_rotary], -1)
        for row, length in enumerate(self.lengths):
            read = whole[self.indices[self.kv[row] : self.kv[row + 1]]].flatten(0, 1)
            assert len(read) - self.page < length <= len(read)
            out[row] = absorbed(wide[row], read[:length], self.scale)


for _name in ("__init__", "plan", "run"):
    _real = signature("flashinfer", "mla/_core.py", f"BatchMLAPagedAttentionWrapper.{_name}")
    setattr(Wrapper, _name, bound(_real, getattr(Wrapper, _name)))


class Work(list[Any]):
    """FlashMLA's distribution of the work: right for the lengths that it was made of."""


def with_kvcache(q: Any, cache: Any, table: Any, lengths: Any, rank: int, *others: Any) -> tuple[torch.Tensor, None]:
    """Of 2026, if the work is filled in here, or of 2025."""
    work, splits, scale = others
    assert q.shape[1:] == (1, q.shape[2], WIDTH)
    assert cache.shape[1:] == (64, 1, WIDTH)
    assert (table.dtype, lengths.dtype, rank, scale) == (torch.int32, torch.int32, RANK, SCALE)
    assert q.is_contiguous()
    assert table.stride(-1) == 1
    if splits is None and not work:
        work.append(lengths.tolist())
    assert work[0] == lengths.tolist()
    rows = []
    for row, length in enumerate(lengths.tolist()):
        blocks = table[row, : -(-length // 64)].long()
        rows.append(absorbed(q[row, 0], cache[blocks].flatten(0, 2)[:length], scale))
    return torch.stack(rows)[:, None], None


def metadata_of_2025(lengths: torch.Tensor, heads_per_latent: int, latent_heads: int) -> tuple[Work, list[int]]:
    assert (heads_per_latent > 1, latent_heads) == (True, 1)
    return Work([lengths.tolist()]), []


def flash_mla(metadata: Any) -> SimpleNamespace:
    def of(name: str, call: Any) -> Any:
        return bound(signature("flash_mla", "flash_mla_interface.py", name), call)

    names = {"get_mla_metadata": metadata, "flash_mla_with_kvcache": with_kvcache}
    return SimpleNamespace(**{name: of(name, call) for name, call in names.items()})


FLASHINFER = SimpleNamespace(mla=SimpleNamespace(BatchMLAPagedAttentionWrapper=Wrapper))
FLASH_MLA = flash_mla(lambda *_: (Work(), None))


@pytest.mark.parametrize("axes", POINTS.values(), ids=POINTS.keys())
@pytest.mark.parametrize("name", ROWS)
def test_the_calls_compute_absorbed_attention(name: str, axes: dict[str, Any]) -> None:
    implementation, inputs = REGISTRY.load(name), inputs_of(**(SMALL | ROWS[name] | axes)).in_form("absorbed")
    assert supported(implementation, inputs.point).ok
    with importable(flashinfer=FLASHINFER, flash_mla=FLASH_MLA):
        check(name, implementation.prepare(inputs), inputs)


def test_flash_mlas_interface_of_2025() -> None:
    inputs = inputs_of(**(SMALL | ROWS["flash_mla"])).in_form("absorbed")
    with importable(flash_mla=flash_mla(metadata_of_2025)):
        check("flash_mla", REGISTRY.load("flash_mla").prepare(inputs), inputs)


@pytest.mark.parametrize("name", ROWS)
def test_a_shared_prefix_is_held_once(name: str) -> None:
    inputs = inputs_of(**(SMALL | ROWS[name]), n_p=128, n_s=128, batch_size=8)
    with importable(flashinfer=FLASHINFER, flash_mla=FLASH_MLA):
        session = REGISTRY.load(name).prepare(inputs)
    assert session.kv_bytes() == 128 * WIDTH * 2
    assert getattr(session, "_wrapper", None) is None or session._wrapper.backend == ("fa3" if "fa3" in name else "fa2")


@pytest.mark.parametrize(
    ("name", "axes", "reason", "remedy"),
    [
        ("flashinfer_mla", {"latent": ODD}, "FlashInfer takes latents of 512 + 64", "write latent: deepseek-v3"),
        ("flashinfer_mla", {"dtype": "float32"}, "FlashInfer takes float16 or bfloat16", "set dtype: float16"),
        ("flash_mla", {"latent": ODD}, "FlashMLA takes latents of 512 + 64", "write latent: deepseek-v3"),
        ("flash_mla", {"dtype": "float32"}, "FlashMLA takes float16 or bfloat16", "set dtype: float16"),
        ("flash_mla", {"block_size": 32}, "FlashMLA takes blocks of 64 tokens, not 32", "set block_size: 64"),
    ],
)
def test_points_that_they_refuse(name: str, axes: dict[str, Any], reason: str, remedy: str) -> None:
    answer = supported(REGISTRY.load(name), inputs_of(**(SMALL | ROWS[name] | axes)).point)
    assert not answer.ok
    assert answer.reason.startswith(reason)
    assert answer.remedy == remedy


def test_where_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(device: str) -> list[tuple[str, str]]:
        return [
            (answer.reason, answer.remedy) for answer in (REGISTRY.load(name).availability(device) for name in ROWS)
        ]

    monkeypatch.setattr(on_gpu, "installed", lambda _: None)
    assert answers("cpu") == [
        *[("flashinfer-python has no CPU kernel", on_gpu.GPU_REMEDY)] * 2,
        ("flash_mla has no CPU kernel", on_gpu.GPU_REMEDY),
    ]
    assert answers("cuda") == [
        *[("the package flashinfer-python is not installed", "pip install 'chunkbench[flashinfer]'")] * 2,
        ("the package flash_mla is not installed", "build it from the source of FlashMLA"),
    ]
    monkeypatch.setattr(on_gpu, "installed", lambda _: "1.0.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    monkeypatch.setattr(flashinfer_, "library", lambda: FLASHINFER)
    with importable(flash_mla=FLASH_MLA):
        assert answers("cuda") == [
            ("", ""),
            ("FlashInfer's fa3 backend runs only on Hopper GPUs", "use flashinfer_mla"),
            ("FlashMLA's kernel for dense decoding runs only on Hopper GPUs", "use flashinfer_mla"),
        ]
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
        assert answers("cuda") == [("", "")] * 3
    with importable(flash_mla=SimpleNamespace()):
        assert answers("cuda")[2][0].startswith("flash_mla 1.0.0 does not load: cannot import name")
