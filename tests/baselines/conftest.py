"""Stand-ins for GPU libraries, and the signatures of the real libraries if their source is installed.

Some libraries cannot be imported without a GPU. The tests parse their source instead and bind the arguments that an
adapter passes to the parameters that the source declares.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from chunkbench.baselines.contract import Session
from chunkbench.experiment.point import Point
from chunkbench.experiment.timed import TOLERANCE
from chunkbench.workers.checks import make_check
from chunkbench.workers.inputs import PooledInputs

Signature = Callable[[str, str, str], inspect.Signature]

_BASE: dict[str, Any] = {
    "n_p": 70,
    "n_s": 40,
    "n_c": 12,
    "batch_size": 4,
    "heads": 4,
    "kv_heads": 4,
    "head_dim": 64,
    "chunk_size": 16,
    "block_size": 16,
    "dtype": "float32",
    "device": "cpu",
}


@pytest.fixture
def make_point() -> Callable[..., Point]:
    return lambda **axes: Point.model_validate(_BASE | axes)


@pytest.fixture
def check_session() -> Callable[[Session, PooledInputs], None]:
    """Decodes at steps before and after a block of 16 fills, rewinds, repeats, and compares with float64."""

    def check(session: Session, inputs: PooledInputs) -> None:
        point = inputs.point
        out = torch.empty(point.batch_size, point.heads, point.head_dim, dtype=getattr(torch, point.dtype))
        for attempt in range(2):
            session.rewind()
            for step in range(1, point.n_c + 1):
                session.append(*inputs.completion(step))
                session.plan()
                if step not in (1, 10, 11, point.n_c):
                    continue
                expected = make_check(inputs, step, nonce=100 * attempt + step)
                out.fill_(float("nan"))
                session.decode(expected.q, out)
                assert expected.max_error(out) < TOLERANCE[point.dtype], f"step {step}"
        distinct = point.unique_prompt_tokens(1) + point.n_c * point.batch_size
        assert distinct * point.token_bytes <= session.kv_bytes()

    return check


@pytest.fixture
def signature() -> Signature:
    """Finds a signature in a package's source by package, file and dotted name; skips if the package is missing."""

    def find(package: str, file: str, name: str) -> inspect.Signature:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            pytest.skip(f"{package} is not installed here")
        origin = Path(spec.origin)
        return _parsed(origin.parent / file if file else origin, name)

    return find


def _parsed(path: Path, name: str) -> inspect.Signature:
    scope: ast.Module | ast.ClassDef | ast.FunctionDef = ast.parse(path.read_text())
    for part in name.split("."):
        # The last definition runs; the ones before it are its overloads.
        scope = [node for node in scope.body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == part][
            -1
        ]
    assert isinstance(scope, ast.FunctionDef)
    arguments = scope.args
    parameter = inspect.Parameter
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    parameters = [
        parameter(
            argument.arg,
            parameter.POSITIONAL_ONLY if index < len(arguments.posonlyargs) else parameter.POSITIONAL_OR_KEYWORD,
            default=None if index >= required else parameter.empty,
        )
        for index, argument in enumerate(positional)
    ]
    if arguments.vararg:
        parameters.append(parameter(arguments.vararg.arg, parameter.VAR_POSITIONAL))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        empty = parameter.empty if default is None else None
        parameters.append(parameter(argument.arg, parameter.KEYWORD_ONLY, default=empty))
    if arguments.kwarg:
        parameters.append(parameter(arguments.kwarg.arg, parameter.VAR_KEYWORD))
    return inspect.Signature(parameters)


def bound(signature: inspect.Signature | None, call: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a call so that its arguments are first bound to `signature`."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        if signature is not None:
            signature.bind(*args, **kwargs)
        return call(*args, **kwargs)

    return checked


@pytest.fixture
def binding() -> Callable[[inspect.Signature | None, Callable[..., Any]], Callable[..., Any]]:
    return bound


@pytest.fixture
def partial_attention() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Attention of q `[r, h, d]` over k, v `[n, h_kv, d]`, and its log-sum-exp in base 2 `[r, h]`.

    Over no tokens: zeros and -5e4, FlashInfer's value for minus infinity.
    """

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if len(k) == 0:
            return torch.zeros_like(q), torch.full(q.shape[:2], -5e4)
        group = q.shape[1] // k.shape[1]
        keys, values = (x.double().repeat_interleave(group, 1) for x in (k, v))
        scores = torch.einsum("rhd,nhd->rhn", q.double(), keys) * q.shape[-1] ** -0.5
        lse = scores.logsumexp(-1)
        out = torch.einsum("rhn,nhd->rhd", (scores - lse[..., None]).exp(), values)
        return out.to(q.dtype), (lse / torch.log(torch.tensor(2.0))).float()

    return attend
