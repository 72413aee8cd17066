"""Mathematics on tensors: the float64 reference, the chunk store and the attention kernels.

Installed as `chunkbench.kernels`; knows nothing of the benchmark suite.
"""
