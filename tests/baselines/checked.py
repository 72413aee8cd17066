"""What the tests of adapters share: points, a comparison with float64, stand-ins, and the real libraries' signatures.

Some libraries cannot be imported without a GPU. The tests parse their source instead and bind the arguments that an
adapter passes to the parameters that the source declares.
"""

from __future__ import annotations

import ast
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch

from chunkbench.bench.contract import Session
from chunkbench.bench.experiment.point import AttentionPoint
from chunkbench.bench.experiment.sessions import TOLERANCE
from chunkbench.bench.measure.profiler import thread_count
from chunkbench.bench.workers.checks import make_check
from chunkbench.bench.workers.heap import visible_bytes
from chunkbench.bench.workers.inputs import PooledInputs

TREE: dict[str, Any] = {"n_s": None, "n_p": 64, "tree": ((32, ((16, 2), (20, 1))), (48, 1))}
POINTS: dict[str, dict[str, Any]] = {
    "part shared": {},
    "rewound inside a block": {"n_p": 66, "n_c": 5},
    "nothing shared": {"n_s": 0},
    "everything shared": {"n_s": 70},
    "everything shared, whole blocks": {"n_p": 64, "n_s": 64},
    "one sequence": {"batch_size": 1},
    "grouped heads": {"kv_heads": 2},
    "one KV head": {"kv_heads": 1, "heads": 5, "batch_size": 3},
    "prompt shorter than a chunk": {"n_p": 5, "n_s": 3},
    "two prompts alternating": {"prompts": 2},
    "tree": TREE,
    "ragged": {"n_p": (50, 90)},
    "float16": {"dtype": "float16"},
    "bfloat16": {"dtype": "bfloat16"},
    "other blocks and chunks": {"block_size": 32, "chunk_size": 64, "n_c": 30},
    "head of 128": {"head_dim": 128, "heads": 2, "kv_heads": 1},
}

IN_8_BITS: dict[str, dict[str, Any]] = {
    "int8": {"kv_dtype": "int8"},
    "uint8, ragged, bfloat16": {"kv_dtype": "uint8", "n_p": (50, 90), "dtype": "bfloat16"},
    "fp8": {"kv_dtype": "fp8", "kv_heads": 2},
}

WINDOWS: dict[str, dict[str, Any]] = {
    "window inside a chunk": {"window": 7, "n_c": 20},
    "window over shared chunks, bfloat16": {"window": 50, "n_s": 70, "dtype": "bfloat16", "kv_heads": 2},
}

DRAFTS: dict[str, dict[str, Any]] = {
    "draft of 5 tokens": {"query_rows": 5, "kv_heads": 2},
    "draft of a tree, ragged": {"query_rows": 8, "draft": "1 2 2 3", "n_p": (50, 90)},
    "draft that begins in what is shared": {"query_rows": 20, "n_s": 70, "n_c": 3},
}


def make_point(**axes: Any) -> AttentionPoint:
    """A small point in float32."""
    base = {
        "n_p": 70, "n_s": 40, "n_c": 12, "batch_size": 4, "heads": 4, "kv_heads": 4, "head_dim": 64,
        "chunk_size": 16, "block_size": 16, "dtype": "float32", "device": "cpu",
    }  # fmt: skip
    return AttentionPoint.model_validate(base | axes)


@cache
def inputs_of(**axes: Any) -> PooledInputs:
    """Tests only read them."""
    return PooledInputs(make_point(**axes), seed=1)


def points(*left_out: str, more: Mapping[str, dict[str, Any]] = MappingProxyType({})) -> pytest.MarkDecorator:
    """A test of every point but those left out, and of more points, as `axes`."""
    kept = {name: axes for name, axes in (POINTS | more).items() if name not in left_out}
    return pytest.mark.parametrize("axes", kept.values(), ids=kept.keys())


_expected = cache(make_check)


def check(session: Session, inputs: PooledInputs) -> None:
    """Decode at steps before and after a block fills, rewind, repeat, and compare with float64.

    On one thread: on a busy machine threads of small tests mostly wait for each other.
    """
    point = inputs.point
    out = torch.empty(point.rows, point.heads, point.head_dim, dtype=getattr(torch, point.dtype))
    with thread_count(1):
        for attempt in range(2):
            session.rewind()
            for step in range(1, point.n_c + 1):
                session.append(*inputs.completion(step))
                session.plan()
                if step not in (1, 2, 10, 11, point.n_c):
                    continue
                expected = _expected(inputs, step, nonce=100 * attempt + step)
                out.fill_(float("nan"))
                session.decode(expected.q, out)
                assert expected.max_error(out) < TOLERANCE[point.dtype], f"step {step}"
    distinct = point.unique_prompt_tokens(1) + point.n_c * point.batch_size
    # Zero: a library holds its tensors where Python cannot see them.
    assert distinct * point.token_bytes <= session.kv_bytes() <= (visible_bytes(session) or math.inf)


@contextmanager
def importable(**modules: Any) -> Iterator[None]:
    """Stand-ins where `import` finds them; None: nothing to find."""
    with pytest.MonkeyPatch.context() as patched:
        for name, module in modules.items():
            patched.setitem(sys.modules, name, module)
        yield


@cache
def signature(package: str, file: str, name: str) -> inspect.Signature | None:
    """A signature in a package's source by package, file and dotted name; None if the package is missing."""
    found = PathFinder.find_spec(package)  # not what stands in for it
    if found is None or found.origin is None:
        return None
    origin = Path(found.origin)
    return _parsed(origin.parent / file if file else origin, name)


def _parsed(path: Path, name: str) -> inspect.Signature:
    scope: ast.Module | ast.ClassDef | ast.FunctionDef = ast.parse(path.read_text())
    for part in name.split("."):
        # The last definition runs; the ones before it are its overloads.
        scope = [node for node in scope.body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == part][
            -1
        ]
    assert isinstance(scope, ast.FunctionDef)
    arguments = scope.args
    for node in ast.walk(arguments):
        if isinstance(node, ast.arg):
            node.annotation = None
    # What a default is does not matter, and its names are not known here.
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]
    arguments.kw_defaults = [default and ast.Constant(None) for default in arguments.kw_defaults]
    function = ast.Expression(ast.Lambda(arguments, ast.Constant(None)))
    return inspect.signature(eval(compile(ast.fix_missing_locations(function), str(path), "eval")))


def bound(signature: inspect.Signature | None, call: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a call so that its arguments are first bound to `signature`."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        if signature is not None:
            signature.bind(*args, **kwargs)
        return call(*args, **kwargs)

    return checked


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of q `[r, h, d]` over k, v `[n, h_kv, d]`, and its log-sum-exp in base 2 `[r, h]`.

    Over no tokens: zeros and -5e4, FlashInfer's value for minus infinity.
    """
    if len(k) == 0:
        return torch.zeros_like(q), torch.full(q.shape[:2], -5e4)
    group = q.shape[1] // k.shape[1]
    keys, values = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scores = torch.einsum("rhd,nhd->rhn", q.double(), keys) * q.shape[-1] ** -0.5
    lse = scores.logsumexp(-1)
    out = torch.einsum("rhn,nhd->rhd", (scores - lse[..., None]).exp(), values)
    return out.to(q.dtype), (lse / torch.log(torch.tensor(2.0))).float()
