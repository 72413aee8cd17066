"""Helpers for adapters of GPU libraries: they check availability, and compile before the timed calls."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import torch

from chunkbench.bench.contract import YES, Answer, Inputs, Session
from chunkbench.bench.experiment.point import AttentionPoint

GPU_REMEDY = "run on an NVIDIA GPU (device: cuda)"
NO_GPU = Answer(False, "PyTorch sees no NVIDIA GPU here", GPU_REMEDY)


def installed(distribution: str) -> str | None:
    """Version of an installed distribution; None if it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def named(distribution: str) -> str:
    """The text `name version`, which names the library in results."""
    return f"{distribution} {installed(distribution)}"


def gpu_library(device: str, distribution: str, remedy: str, load: Callable[[], object]) -> Answer:
    """Whether a library that has only GPU kernels is installed, and `load` imports it without an error. `remedy`: what
    installs it."""
    if device != "cuda":
        return Answer(False, f"{distribution} has no CPU kernel", GPU_REMEDY)
    if installed(distribution) is None:
        return Answer(False, f"the package {distribution} is not installed", remedy)
    return loads(distribution, load)


def extra(name: str) -> str:
    """The command that installs an extra of this package."""
    return f"pip install 'chunkbench[{name}]'"


def gpu_alone(device: str, reason: str) -> Answer:
    """Yes if `device` is an existing GPU. For a CPU the answer is no, with this `reason`."""
    if device != "cuda":
        return Answer(False, reason, GPU_REMEDY)
    return YES if torch.cuda.is_available() else NO_GPU


def loads(distribution: str, load: Callable[[], object]) -> Answer:
    """Whether there is a GPU, and `load` imports the installed library without an error."""
    if not torch.cuda.is_available():
        return NO_GPU
    try:
        load()
    except (ImportError, OSError, RuntimeError) as error:  # extensions built for another PyTorch raise one of these
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return Answer(False, f"{named(distribution)} does not load: {lines[0]}", "install a build for this PyTorch")
    return YES


def half_precision(point: AttentionPoint, library: str) -> Answer:
    """Whether a library that does not accept float32 supports the dtype of a point."""
    if point.dtype == "float32":
        return Answer(False, f"{library} takes float16 or bfloat16", "set dtype: float16")
    return YES


def compile_now(session: Session, inputs: Inputs) -> None:
    """Plan and decode once, so that `prepare` compiles the kernels and no timed call does."""
    point = inputs.point
    rows = (point.rows, point.heads)
    value_dim = point.head_dim if point.latent is None else point.latent.kv_rank
    q = torch.zeros((*rows, point.head_dim), dtype=getattr(torch, point.dtype), device=point.device)
    session.plan()
    session.decode(q, q.new_empty((*rows, value_dim)))
