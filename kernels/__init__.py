"""Mathematics on tensors: the float64 reference, the chunk store and the attention kernels.

Installed as `chunkbench.kernels`; it does not depend on the benchmark suite.
"""
