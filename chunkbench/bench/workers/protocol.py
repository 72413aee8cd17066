"""Constants that the runner and a worker share. Requests and replies are JSON lines, one request at a time.

A worker may belong to another revision of this package than the runner, or run in another environment.
"""

from __future__ import annotations

PROTOCOL = 3
"""Version of the requests and replies. The runner refuses a worker with another version. Version 2 added `preload` and
`fork`. Version 3 added `warm`, and samples in `check`."""

TIMED = frozenset({"check", "round", "gpu_round", "peaks", "profile"})
"""Requests that time something. The reply says `suspended` if the worker was stopped meanwhile. The times are then
wrong."""

OUT_OF_MEMORY = 12
"""Exit code of a worker that could not even read a request or write a reply."""

WORKER_BYTES = 3 << 29
"""Bytes that a worker needs without K and V: interpreter, libraries, the pool of inputs, the checks and the cache
sweeper."""
