"""What the runner and a worker agree on. Requests and replies are JSON lines, one request at a time.

A worker may come from another revision of this package than the runner, or run in another environment.
"""

from __future__ import annotations

PROTOCOL = 3
"""Version of the requests and replies; a worker that speaks another one is refused. 2 added `preload` and
`fork`, 3 `warm` and samples in `check`."""

WORKER_BYTES = 3 << 29
"""Memory of a worker beside K and V: interpreter, libraries, the pool of inputs, the checks and the cache sweeper."""
