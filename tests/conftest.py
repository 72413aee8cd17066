"""Settings that hold for all tests."""

from hypothesis import settings

# Two slow cores shared with other work: a time limit per example would fail at random.
settings.register_profile("chunkbench", deadline=None)
settings.load_profile("chunkbench")
