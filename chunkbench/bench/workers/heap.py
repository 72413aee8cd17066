"""Keeps the memory of a worker.

The worker reserves its heap once. Freed memory stays in the heap, and returns to the system only when memory is short.
On a virtual machine, the first touch of new pages can cost seconds per gigabyte. Two threads that let the kernel
populate whole ranges reduce this cost to less than half. A page whose mapping was kept costs a fifth. A page that was
itself kept costs nothing.

`visible_bytes` adds up the tensors of a session, to check its `kv_bytes`.
"""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from random import SystemRandom
from types import FunctionType, ModuleType
from typing import Any

import torch

from chunkbench.bench.environment import available_memory
from chunkbench.malloc import glibc

KEEP_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 50)}
"""Environment variables of a worker: they make glibc keep freed memory, including large blocks."""
_ALL = 1 << 62
_PAGE, _PIECE, _HOLE = 4096, 1 << 28, 1 << 20
_MADV_POPULATE_WRITE = 23
_LINE, _LINES = 64, 1 << 14


def reserve(size: int, threads: int) -> None:
    """Grow the heap by one free block of `size` bytes and touch its pages. Does nothing without glibc."""
    libc = glibc()
    if libc is None or size <= 0:
        return
    hole = libc.malloc(_HOLE)
    block = libc.malloc(size)
    libc.free(hole)  # else the threads' own allocations lie between the block and the heap's end
    if not block:
        return

    def touch(start: int) -> None:
        length = min(_PIECE, size - start)
        if libc.madvise(block + start, length, _MADV_POPULATE_WRITE):  # Linux before 5.14
            ctypes.memset(block + start, 1, length)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(touch, range(-block % _PAGE, size, _PIECE)))
    libc.free(block)


def make_room(size: int, margin: int) -> None:
    """Return freed pages to the system, so that large blocks of together `size` bytes can be allocated. `margin` bytes
    of memory then stay available.

    Pages in holes of the heap are returned first. Pages at the end of the heap follow only if memory is still lacking.
    Does nothing without glibc.
    """
    libc = glibc()
    if libc is None or _lacking(libc, size) + margin <= 0:
        return
    libc.malloc_trim(_ALL)  # returns the pages of holes; their mappings stay
    lacking = _lacking(libc, size) + margin
    if lacking > 0:
        libc.malloc_trim(max(0, libc.mallinfo2().keepcost - lacking))


def shift() -> None:
    """Shift all later allocations by a random distance below one page. Does nothing without glibc.

    Forked processes inherit one heap, so the same blocks start at the same position of a page in all children. The
    position alone makes a kernel some percent faster or slower, equally in all children. A random shift avoids that.
    """
    libc = glibc()
    if libc is not None:
        libc.sbrk(_LINE * SystemRandom().randrange(_LINES))


def _lacking(libc: ctypes.CDLL, size: int) -> int:
    """Number of bytes that are missing for blocks of `size`: the memory that they need from the system in the worst
    case, minus the available memory.

    glibc puts a block into a hole of the heap that is large enough, otherwise at the end of the heap. In the worst
    case, no hole has pages left.
    """
    heap = libc.mallinfo2()
    free, end = int(heap.fordblks), int(heap.keepcost)
    return max(min(size, free - end), size - end) - available_memory()


_DEPTH = 8
_NO_HOLDERS = (str, bytes, int, float, type(None), type, ModuleType, FunctionType)
"""Types of objects that are not searched for tensors. Numbers and texts hold no tensors. Modules, classes and functions
lead to tensors that belong to other objects."""


def visible_storages(root: object) -> dict[int, int]:
    """The tensor storages that an object reaches through attributes, lists, tuples and dicts: address -> bytes."""
    storages: dict[int, int] = {}
    seen: set[int] = set()
    _walk(root, 0, seen, storages)
    return storages


def visible_bytes(root: object) -> int:
    """Sum of the bytes of all tensor storages that an object reaches (`visible_storages`)."""
    return sum(visible_storages(root).values())


def _walk(value: Any, depth: int, seen: set[int], storages: dict[int, int]) -> None:
    if id(value) in seen or depth > _DEPTH or isinstance(value, _NO_HOLDERS):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    elif isinstance(value, dict):
        for item in value.values():
            _walk(item, depth + 1, seen, storages)
    elif isinstance(value, (list, tuple, set)):
        # A session may hold a long list of tensors; a long list of numbers would only cost time.
        if len(value) and not all(isinstance(item, (int, float)) for item in value):
            for item in value:
                _walk(item, depth + 1, seen, storages)
    elif hasattr(value, "__dict__"):
        for item in vars(value).values():
            _walk(item, depth + 1, seen, storages)
    elif hasattr(value, "__slots__"):
        for name in value.__slots__:
            _walk(getattr(value, name, None), depth + 1, seen, storages)
