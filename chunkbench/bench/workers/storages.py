"""Measures the tensor memory that a session holds, to check its `kv_bytes`."""

from __future__ import annotations

from types import FunctionType, ModuleType
from typing import Any

import torch

_DEPTH = 8
_NO_HOLDERS = (str, bytes, int, float, type(None), type, ModuleType, FunctionType)
"""Types that are not followed: numbers and texts hold no tensors; modules, classes and functions lead to everything."""


def visible_storages(root: object) -> dict[int, int]:
    """Address -> bytes of all tensor storages reachable from an object through attributes, lists, tuples and dicts."""
    storages: dict[int, int] = {}
    seen: set[int] = set()
    _walk(root, 0, seen, storages)
    return storages


def visible_bytes(root: object) -> int:
    """Bytes of all these storages."""
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
