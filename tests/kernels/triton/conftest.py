"""Without a GPU, the kernels run in Triton's interpreter (`tests/conftest.py` selects it)."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

from tests.kernels.triton.interpreter import mend_interpreter

if importlib.util.find_spec("triton") is None and os.environ.get("CHUNKBENCH_REQUIRE_TRITON"):
    raise RuntimeError("Triton is not installed, and CHUNKBENCH_REQUIRE_TRITON asks for its tests")

if not torch.cuda.is_available():
    pytest.importorskip("triton", reason="triton is not installed")
    mend_interpreter()


@pytest.fixture(scope="session")
def device() -> str:
    """The device for the kernels: the GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"
