from __future__ import annotations

import torch

from chunkbench.bench.workers.inputs import PooledInputs
from tests.baselines.checked import make_point

SHAPE = {"n_p": 50, "n_s": 20, "n_c": 4, "batch_size": 3, "kv_heads": 2, "head_dim": 16}


def inputs(seed: int = 0, **axes: object) -> PooledInputs:
    return PooledInputs(make_point(**SHAPE | axes), seed)


def test_shared_tokens_have_the_same_ids_and_values_and_private_ones_differ() -> None:
    point_inputs = inputs()
    assert point_inputs.prompts[0][:20] == point_inputs.prompts[2][:20]
    assert point_inputs.prompts[0][20:] != point_inputs.prompts[2][20:]
    first, other = point_inputs.keys_values(0, 0, 50)[0], point_inputs.keys_values(2, 0, 50)[0]
    assert torch.equal(first[:20], other[:20])
    assert not (first[20:] == other[20:]).all(dim=(1, 2)).any()


def test_keys_values_of_a_range_equal_that_range_of_the_whole_prompt() -> None:
    point_inputs = inputs()
    k, v = point_inputs.keys_values(1, 0, 50)
    part_k, part_v = point_inputs.keys_values(1, 13, 37)
    assert torch.equal(part_k, k[13:37])
    assert torch.equal(part_v, v[13:37])
    assert not torch.equal(k, v)


def test_the_seed_determines_all_inputs() -> None:
    first, same, other = inputs(7), inputs(7), inputs(8)
    assert first.prompts == same.prompts != other.prompts
    assert torch.equal(first.keys_values(0, 0, 50)[0], same.keys_values(0, 0, 50)[0])
    assert not torch.equal(first.keys_values(0, 0, 50)[0], other.keys_values(0, 0, 50)[0])
    assert torch.equal(first.queries(3, 1), same.queries(3, 1))
    assert not torch.equal(first.queries(3, 1), first.queries(3, 2))


def test_values_are_standard_normal() -> None:
    k, v = inputs(n_p=4000, n_s=0).keys_values(0, 0, 4000)
    for values in (k, v, inputs(batch_size=64).queries(1)):
        assert abs(values.mean()) < 0.05
        assert abs(values.std() - 1) < 0.05


def test_context_is_the_prompt_followed_by_the_completion_tokens() -> None:
    point_inputs = inputs()
    k, v = point_inputs.context(2, 3)
    assert torch.equal(k[:50], point_inputs.keys_values(2, 0, 50)[0])
    assert torch.equal(k[52], point_inputs.completion(3)[1][2])
    assert torch.equal(v[50], point_inputs.completion(1)[2][2])


def test_capacity_of_ragged_prompts_fits_the_longest() -> None:
    point_inputs = inputs(n_p=(30, 60), batch_size=16)
    lengths = [len(prompt) for prompt in point_inputs.prompts]
    assert min(lengths) >= 30
    assert len(set(lengths)) > 1
    assert point_inputs.capacity == max(lengths) + 4


def test_sequences_share_the_tokens_of_their_common_path() -> None:
    point_inputs = inputs(n_s=None, n_p=40, batch_size=4, tree=((16, ((8, 2), (8, 1))), (24, 1)))
    a, b, c, d = point_inputs.prompts
    assert a[:24] == b[:24]
    assert a[:16] == c[:16]
    assert a[16:24] != c[16:24]
    assert a[:16] != d[:16]
