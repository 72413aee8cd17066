"""Plug-ins for other systems: runs on a Ray cluster, and our kernels in vLLM."""
