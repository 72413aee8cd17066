"""The example implementation in `docs/library.md` works as printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.baselines.checks import check, inputs_of

PAGE = Path(__file__).parents[2] / "docs" / "library.md"
CODE = re.compile(r"```python\n(# my_kernel\.py\n.*?)```", re.DOTALL)


def test_the_example_project_has_the_documented_code() -> None:
    code = CODE.search(PAGE.read_text())
    assert code is not None
    assert (PAGE.parents[1] / "examples" / "my-kernel" / "src" / "my_kernel.py").read_text() == code.group(1)


def test_the_example_of_the_documentation_is_correct() -> None:
    code = CODE.search(PAGE.read_text())
    assert code is not None
    names: dict[str, Any] = {}
    exec(code.group(1), names)
    implementation = names["MyKernel"]()
    assert implementation.availability("cpu").ok
    assert not implementation.availability("cuda").ok
    inputs = inputs_of(n_p=(20, 30), n_s=10, n_c=3, batch_size=3, kv_heads=2, head_dim=32)
    session = implementation.prepare(inputs)
    check(session, inputs)
    held = sum(len(prompt) + 3 for prompt in inputs.prompts)
    assert session.kv_bytes() == held * inputs.point.token_bytes
