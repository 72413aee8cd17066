"""Limits of the operating system other than memory: open files, and shared memory for locks."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def most_files() -> Iterator[None]:
    """During the block, let this process open as many files as the system allows, because each connection is an open
    file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # a system may refuse its hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def no_locks(error: OSError) -> str:
    """A message that says why processes cannot share locks, and what to do."""
    return f"/dev/shm: cannot be used: {error.strerror}; processes need it for their locks: mount it writable"
