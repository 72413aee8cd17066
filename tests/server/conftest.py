"""The tests of serving need the libraries of the extra `serving`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

NEEDED = ("transformers", "starlette", "uvicorn", "aiohttp", "prometheus_client", "openai")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]

collect_ignore = [str(path) for path in Path(__file__).parent.rglob("test_*.py")] if MISSING else []
