"""Without a GPU, the kernels run in Triton's interpreter (`tests/conftest.py` selects it)."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import numpy as np
import pytest
import torch


def _patch_interpreter(interpreter: Any) -> None:
    """Add two features that the interpreter of Triton 3.6 lacks."""
    tl = pytest.importorskip("triton.language")
    patch_tensor, create_dot = interpreter._patch_lang_tensor, interpreter.InterpreterBuilder.create_dot

    def patch_index_too(tensor: object, scope: Any) -> None:
        """The interpreter's scalars are arrays of one element. NumPy 2.4 no longer accepts these as an index."""
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def dot_of_bfloat16(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
        """The interpreter stores bfloat16 as bits. A product must not read these as integers."""
        return create_dot(builder, *(_as_float32(x, tl) for x in (a, b)), *rest)

    def _as_float32(x: Any, tl: Any) -> Any:
        if x.dtype.scalar != tl.bfloat16:
            return x
        return interpreter.TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    interpreter._patch_lang_tensor = patch_index_too
    interpreter.InterpreterBuilder.create_dot = dot_of_bfloat16


if importlib.util.find_spec("triton") is None and os.environ.get("CHUNKBENCH_REQUIRE_TRITON"):
    raise RuntimeError("Triton is not installed, and CHUNKBENCH_REQUIRE_TRITON asks for its tests")

if not torch.cuda.is_available():
    _patch_interpreter(pytest.importorskip("triton.runtime.interpreter", reason="triton is not installed"))


@pytest.fixture(scope="session")
def device() -> str:
    """The device for the kernels: the GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"
