from __future__ import annotations

import torch

from chunkbench.experiment.point import Point
from chunkbench.workers.inputs import PooledInputs

AXES = {
    "n_c": 4,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 16,
    "chunk_size": 16,
    "block_size": 16,
    "dtype": "float32",
    "device": "cpu",
}


def inputs(seed: int = 0, **axes: object) -> PooledInputs:
    return PooledInputs(Point.model_validate({**AXES, "n_p": 50, "n_s": 20, "batch_size": 3} | axes), seed)


def test_shared_tokens_have_the_same_ids_and_values_and_private_ones_differ() -> None:
    made = inputs()
    assert made.prompts[0][:20] == made.prompts[2][:20]
    assert made.prompts[0][20:] != made.prompts[2][20:]
    first, other = made.keys_values(0, 0, 50)[0], made.keys_values(2, 0, 50)[0]
    assert torch.equal(first[:20], other[:20])
    assert not (first[20:] == other[20:]).all(dim=(1, 2)).any()


def test_a_slice_is_the_same_as_the_slice_of_the_whole() -> None:
    made = inputs()
    k, v = made.keys_values(1, 0, 50)
    part_k, part_v = made.keys_values(1, 13, 37)
    assert torch.equal(part_k, k[13:37])
    assert torch.equal(part_v, v[13:37])
    assert not torch.equal(k, v)


def test_the_seed_decides_everything() -> None:
    one, same, other = inputs(7), inputs(7), inputs(8)
    assert one.prompts == same.prompts != other.prompts
    assert torch.equal(one.keys_values(0, 0, 50)[0], same.keys_values(0, 0, 50)[0])
    assert not torch.equal(one.keys_values(0, 0, 50)[0], other.keys_values(0, 0, 50)[0])
    assert torch.equal(one.queries(3, 1), same.queries(3, 1))
    assert not torch.equal(one.queries(3, 1), one.queries(3, 2))


def test_values_are_standard_normal() -> None:
    k, v = inputs(n_p=4000, n_s=0).keys_values(0, 0, 4000)
    for values in (k, v, inputs(batch_size=64).queries(1)):
        assert abs(values.mean()) < 0.05
        assert abs(values.std() - 1) < 0.05


def test_context_is_the_prompt_and_then_the_completion_tokens() -> None:
    made = inputs()
    k, v = made.context(2, 3)
    assert torch.equal(k[:50], made.keys_values(2, 0, 50)[0])
    assert torch.equal(k[52], made.completion(3)[1][2])
    assert torch.equal(v[50], made.completion(1)[2][2])


def test_ragged_prompts_leave_room_for_the_longest() -> None:
    made = inputs(n_p=(30, 60), batch_size=16)
    lengths = [len(prompt) for prompt in made.prompts]
    assert min(lengths) >= 30
    assert len(set(lengths)) > 1
    assert made.capacity == max(lengths) + 4


def test_a_tree_shares_along_its_paths() -> None:
    made = inputs(n_s=None, n_p=40, batch_size=4, tree=((16, ((8, 2), (8, 1))), (24, 1)))
    a, b, c, d = made.prompts
    assert a[:24] == b[:24]
    assert a[:16] == c[:16]
    assert a[16:24] != c[16:24]
    assert a[:16] != d[:16]
