"""Sends this ChunkBench to the nodes of a cluster that lack it, or that have another revision."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from chunkbench.bench.environment.revision import copy_package


@contextmanager
def shipped(wanted: bool) -> Iterator[Mapping[str, Any]]:
    """Ray's runtime environment with this package, its native module, and its entry points; empty unless `wanted`.

    The nodes need the same system, Python and PyTorch, and the packages that ChunkBench imports.
    """
    if not wanted:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="chunkbench-ship-") as temporary:
        folder = Path(temporary)
        copy_package(folder)
        installed = distribution("chunkbench")
        metadata = folder / f"chunkbench-{installed.version}.dist-info"
        metadata.mkdir()
        for name in ("METADATA", "entry_points.txt"):
            (metadata / name).write_text(installed.read_text(name) or "", encoding="utf-8")
        yield {"working_dir": str(folder)}
