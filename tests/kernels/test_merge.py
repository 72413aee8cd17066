import torch

from chunkbench.kernels.merge import FLOAT32_MIN, Partials


def partials_of(scores, values, owners, cuts, batch):
    """Partial results by definition. Entry p is the part `cuts[p]` of the context of row `owners[p]`."""
    partials = Partials(1, values.shape[-1], torch.device("cpu"))
    partials.reset(torch.tensor(owners), batch)
    for entry, (owner, (start, stop)) in enumerate(zip(owners, cuts, strict=True)):
        part = scores[owner, start:stop]
        peak = part.max().clamp(min=FLOAT32_MIN)
        weights = torch.exp(part - peak)
        partials.peaks[entry, 0] = peak
        partials.sums[entry, 0] = weights.sum()
        partials.outputs[entry, 0] = weights @ values[owner, start:stop]
    return partials


def test_parts_in_any_order_merge_to_the_softmax_of_the_context():
    torch.manual_seed(0)
    scores, values = 5 * torch.randn(2, 10), torch.randn(2, 10, 16)
    partials = partials_of(scores, values, [1, 0, 1, 1, 0], [(4, 5), (0, 7), (5, 10), (0, 4), (7, 10)], 2)
    out = torch.empty(2, 1, 16)
    partials.merge(out)
    expected = torch.einsum("bn,bnd->bd", scores.softmax(-1), values)
    torch.testing.assert_close(out[:, 0], expected, rtol=1e-5, atol=1e-6)


def test_a_part_without_weight_and_parts_with_distant_scores():
    scores = torch.tensor([[-torch.inf, -torch.inf, 3.0, 3.0], [-1e30, 0.0, 1e30, 1e30]])
    values = torch.arange(4.0)[None, :, None].expand(2, 4, 16)
    partials = partials_of(scores, values, [0, 0, 1, 1], [(0, 2), (2, 4), (0, 2), (2, 4)], 2)
    out = torch.empty(2, 1, 16)
    partials.merge(out)
    torch.testing.assert_close(out, torch.full((2, 1, 16), 2.5))


def test_memory_is_reused_when_the_rows_change():
    partials = Partials(2, 16, torch.device("cpu"))
    partials.reset(torch.zeros(8, dtype=torch.int64), 1)
    address = partials.outputs.data_ptr()
    partials.reset(torch.zeros(5, dtype=torch.int64), 1)
    assert partials.outputs.shape == (5, 2, 16)
    assert partials.outputs.data_ptr() == address
