"""A plug-in for vLLM: computes attention with the two-phase partition, under vLLM's own scheduler, cache manager and
models.

vLLM finds it by the entry point group `vllm.general_plugins`. The plug-in does nothing unless the variable
`VLLM_PLUGINS` names it. Only `cpu` and `gpu` import vLLM.
"""

from chunkbench.plugins.vllm.plugin import register

__all__ = ["register"]
