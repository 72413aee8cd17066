"""The tests of serving need the libraries of the extra `serving`."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

NEEDED = ("transformers", "starlette", "uvicorn", "aiohttp", "prometheus_client", "openai")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]

if MISSING and os.environ.get("CHUNKBENCH_REQUIRE_SERVING"):
    raise ImportError(f"CHUNKBENCH_REQUIRE_SERVING is set, but {', '.join(MISSING)} is not installed")
collect_ignore = [str(path) for path in Path(__file__).parent.rglob("test_*.py")] if MISSING else []
