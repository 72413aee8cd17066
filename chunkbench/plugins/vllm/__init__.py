"""A plug-in for vLLM: two-phase partition behind vLLM's own scheduler, cache manager and models.

vLLM finds it by the entry point group `vllm.general_plugins`. It does nothing unless the variable `VLLM_PLUGINS` names
it. Only `cpu` imports vLLM.
"""

from chunkbench.plugins.vllm.plugin import register

__all__ = ["register"]
