"""JSON: the content of an output as data."""

from __future__ import annotations

import json
import math
from typing import Any


def render(data: Any) -> str:
    """The data, with null for NaN and infinity (errors of wrong results), which JSON lacks."""
    return json.dumps(_finite(data), indent=1, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value
