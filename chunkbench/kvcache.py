"""An old import path for the names of `chunkbench.attention`. Version 0.3 will remove this module."""

from __future__ import annotations

import warnings
from typing import Any

from chunkbench import attention


def __getattr__(name: str) -> Any:
    if name not in attention.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"import {name} from chunkbench.attention, not from chunkbench.kvcache", DeprecationWarning, 2)
    return getattr(attention, name)
