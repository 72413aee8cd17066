"""The memory that the sweeps of several processes share."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from chunkbench.bench.measure.caches import CacheSweeper, last_level_cache_bytes, sweep_bytes, sweep_file

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shares memory by a path of a process")


def test_a_mapped_sweep_outlives_the_path() -> None:
    with sweep_file() as path:
        assert Path(path).stat().st_size == sweep_bytes("cpu", last_level_cache_bytes("cpu"))
        sweeper = CacheSweeper("cpu", 0, path)
    sweeper.sweep()
    assert not Path(path).exists()


def test_without_memory_to_share_there_is_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with sweep_file() as path:
        assert path == ""
