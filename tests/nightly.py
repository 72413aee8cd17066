"""The mark of tests that take minutes, or that start machines of their own: `make nightly` runs them."""

from __future__ import annotations

import os

import pytest

NIGHTLY = pytest.mark.skipif("CHUNKBENCH_NIGHTLY" not in os.environ, reason="takes long; make nightly runs it")
