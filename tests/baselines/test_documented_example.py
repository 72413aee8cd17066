"""The example implementation in `docs/adding-a-baseline.md` works as printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from chunkbench.experiment.point import AttentionPoint
from chunkbench.workers.checks import make_check
from chunkbench.workers.inputs import PooledInputs

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-baseline.md"


def test_the_example_project_has_the_documented_code() -> None:
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert code is not None
    assert (PAGE.parents[1] / "examples" / "my-kernel" / "src" / "my_kernel.py").read_text() == code.group(1)


def test_the_example_of_the_documentation_is_correct() -> None:
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    exec(code.group(1), names)
    implementation = names["MyKernel"]()
    assert implementation.availability("cpu").ok
    assert not implementation.availability("cuda").ok
    point = AttentionPoint(
        n_p=(20, 30), n_s=10, n_c=3, batch_size=3, heads=4, kv_heads=2, head_dim=32, chunk_size=16, block_size=16,
        dtype="float32", device="cpu",
    )  # fmt: skip
    inputs = PooledInputs(point, seed=3)
    session = implementation.prepare(inputs)
    for _ in range(2):
        session.rewind()
        for step in range(1, 4):
            session.append(*inputs.completion(step))
            session.plan()
        check = make_check(inputs, 3, nonce=1)
        out = torch.full((3, 4, 32), float("nan"))
        session.decode(check.q, out)
        assert check.max_error(out) < 1e-5
    held = sum(len(prompt) + 3 for prompt in inputs.prompts)
    assert session.kv_bytes() == held * point.token_bytes
