"""Settings that hold for all tests."""

import os

import torch
from hypothesis import settings

from chunkbench import workloads

# Two slow cores shared with other work: a time limit per example would fail at random.
settings.register_profile("chunkbench", deadline=None)
settings.load_profile("chunkbench")

if not torch.cuda.is_available():
    # Triton's interpreter has to be chosen before anything imports Triton, as torch.compile does.
    os.environ["TRITON_INTERPRET"] = "1"

workloads.register()
pytest_plugins = ["tests.invented_facts", "tests.invented_runs", "tests.tiny_runs"]
