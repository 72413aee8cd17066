"""Without a GPU, the kernels run in Triton's interpreter (`tests/conftest.py` selects it)."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.triton.interpreter import mend_interpreter

if not torch.cuda.is_available():
    pytest.importorskip("triton", reason="triton is not installed")
    mend_interpreter()


@pytest.fixture(scope="session")
def device() -> str:
    """The device for the kernels: the GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"
