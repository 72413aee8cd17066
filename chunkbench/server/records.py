"""The server's records: metrics for Prometheus, and log files with a line for each step and each request."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from chunkbench.server.backend import Load
from chunkbench.server.engine import StepReport
from chunkbench.text_file import write_whole

STEP_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
"""Upper bounds of the buckets of the histogram of step times, in seconds."""


class Metrics:
    """The metrics of one server."""

    def __init__(self, load: Callable[[], Load]) -> None:
        """`load` is called when somebody reads the metrics."""
        self._registry = registry = CollectorRegistry()
        prefix = "chunkbench_"
        gauges = {
            "requests_running": ("Requests that hold K/V", lambda: load().running),
            "requests_waiting": ("Requests in the queue", lambda: load().waiting),
            "kv_bytes": ("Bytes of K/V of running requests", lambda: load().kv_bytes),
            "idle_kv_bytes": ("Bytes of K/V kept for later requests", lambda: load().idle_kv_bytes),
        }
        for name, (text, function) in gauges.items():
            Gauge(prefix + name, text, registry=registry).set_function(function)
        self.requests = Counter(prefix + "requests", "Requests by outcome", ["outcome"], registry=registry)
        self.prompt_tokens = Counter(prefix + "prompt_tokens", "Tokens of prompts", registry=registry)
        self.cached_tokens = Counter(prefix + "cached_tokens", "Tokens of prompts not computed", registry=registry)
        self.generated_tokens = Counter(prefix + "generated_tokens", "Tokens of answers", registry=registry)
        self.preemptions = Counter(prefix + "preemptions", "Requests that lost their K/V for a time", registry=registry)
        self.steps = Histogram(
            prefix + "step_seconds", "Time of an engine's step", buckets=STEP_BUCKETS, registry=registry
        )

    def page(self) -> bytes:
        """The text of /metrics in Prometheus' format."""
        return generate_latest(self._registry)


class Log:
    """Writes steps.jsonl and requests.jsonl into a folder. Times are in seconds of `time.perf_counter`, which all
    processes of a Linux host share.

    If a file cannot be written any more, for example because the disk is full, its last line stays complete. The
    server continues without this file.
    """

    def __init__(self, folder: Path | None) -> None:
        """Create the files, and replace old ones. Without a folder, nothing is written. Raises OSError."""
        self._lock = threading.Lock()
        self._files: dict[str, FileIO] = {}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            # Without a buffer, so that lines survive if the server is killed.
            self._files = {name: FileIO(folder / f"{name}.jsonl", "w") for name in ("steps", "requests")}

    def step(self, ended: float, report: StepReport, load: Load) -> None:
        """Write a line about a step."""
        self._write(
            "steps",
            {
                "ended": ended,
                "s": report.seconds,
                "overhead_s": report.overhead_s,
                "tree_s": report.tree_s,
                "batch": report.batch,
                "prompt_tokens": report.prompt_tokens,
                "generated": len(report.generated),
                "preempted": report.preempted,
                "waiting": load.waiting,
                "kv_bytes": report.kv_bytes,
                "arrived": report.arrived,
            },
        )

    def request(self, **fields: Any) -> None:
        """Write a line about a request that ended."""
        self._write("requests", fields)

    def close(self) -> None:
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files = {}

    def _write(self, name: str, fields: dict[str, Any]) -> None:
        with self._lock:
            file = self._files.get(name)
            if file is None:
                return
            try:
                write_whole(file, json.dumps(fields).encode())
            except OSError as error:
                del self._files[name]
                logging.getLogger(__name__).error("%s ends here: %s", file.name, error.strerror)
                file.close()
