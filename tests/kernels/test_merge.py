import torch

from chunkbench.kernels.merge import Partials


def test_memory_is_reused_when_the_rows_change():
    partials = Partials(2, 16, torch.device("cpu"))
    partials.reset(torch.zeros(8, dtype=torch.int64), 1)
    address = partials.outputs.data_ptr()
    partials.reset(torch.zeros(5, dtype=torch.int64), 1)
    assert partials.outputs.shape == (5, 2, 16)
    assert partials.outputs.data_ptr() == address
