"""Settings for all tests."""

import os

import torch
from hypothesis import settings

from chunkbench import workloads

# Tests run on two slow cores that other work shares, so a time limit per example would fail at random.
settings.register_profile("chunkbench", deadline=None)
settings.load_profile("chunkbench")

if not torch.cuda.is_available():
    # Choose Triton's interpreter before the first import of Triton; torch.compile imports it.
    os.environ["TRITON_INTERPRET"] = "1"

workloads.register()
pytest_plugins = ["tests.invented_facts", "tests.invented_runs", "tests.tiny_runs"]
