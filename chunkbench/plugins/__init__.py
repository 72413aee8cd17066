"""What needs other people's systems: runs on a Ray cluster, and our kernels in vLLM."""
