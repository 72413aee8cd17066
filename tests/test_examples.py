"""The example that shows the idea: exact on every forest, and it runs by itself."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from chunkbench.kernels.reference import attention
from examples import two_phase as example

EXAMPLE = Path(example.__file__)


@pytest.mark.parametrize("shared", [0, 1, 63, 64, 200])
def test_both_kinds_of_attention_equal_the_reference(shared: int) -> None:
    rng, vocabulary = random.Random(shared), 50
    prefix = rng.choices(range(vocabulary), k=shared)
    prompts = [prefix + rng.choices(range(vocabulary), k=130) for _ in range(4)]
    prompts[3] = prompts[2][:-5] + prompts[3][-5:]  # a second prefix, of two sequences
    k, v = torch.randn(2, 2, vocabulary, 16).double()
    q = torch.randn(2, len(prompts), 16).double()
    chunks = example.prefix_tree(prompts, k, v)
    two_phase = example.two_phase_attention(q, chunks)
    plain = example.plain_attention(q, k[:, prompts], v[:, prompts])
    for sequence, prompt in enumerate(prompts):
        expected = attention(q[:, sequence], k[:, prompt].transpose(0, 1), v[:, prompt].transpose(0, 1))
        torch.testing.assert_close(two_phase[:, sequence], expected)
        torch.testing.assert_close(plain[:, sequence], expected)


def test_a_chunk_is_shared_where_everything_before_its_end_is_equal() -> None:
    prompts = [[1] * 64 + [2] * 64, [1] * 64 + [3] * 64 + [4], [5] * 64 + [2] * 64]
    k, v = torch.randn(2, 1, 6, 4)
    sharers = [chunk.sequences for chunk in example.prefix_tree(prompts, k, v)]
    assert sharers == [[0, 1], [0], [1], [1], [2], [2]]


def test_it_runs_with_torch_alone_and_the_results_agree() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    plain, two_phase, difference = done.stdout.splitlines()
    assert (plain.split()[0], two_phase.split()[0]) == ("plain:", "two-phase:")
    assert float(difference.split()[-1]) < 1e-5
    imports = [line for line in EXAMPLE.read_text().splitlines() if line.startswith(("import ", "from "))]
    assert "chunkbench" not in " ".join(imports)
