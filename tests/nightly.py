"""The mark of tests that take minutes, or that start machines of their own: `make nightly` runs them."""

from __future__ import annotations

import os

import pytest

IS_NIGHT = "CHUNKBENCH_NIGHTLY" in os.environ
NIGHTLY = pytest.mark.skipif(not IS_NIGHT, reason="takes long; make nightly runs it")
