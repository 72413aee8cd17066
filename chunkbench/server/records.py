"""The server's records: metrics for Prometheus, and log files with a line for each step and each request."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from chunkbench.server.backend import Load
from chunkbench.server.engine import StepReport
from chunkbench.text_file import write_whole

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
"""Upper bounds of the buckets of the histograms, in seconds."""
PREFIX = "chunkbench_"
VLLM = {
    "requests_running": "num_requests_running",
    "requests_waiting": "num_requests_waiting",
    "kv_usage": "kv_cache_usage_perc",
    "prompt_tokens": ("prompt_tokens", "prefix_cache_queries"),
    "cached_tokens": "prefix_cache_hits",
    "generated_tokens": "generation_tokens",
    "answers": "request_success",
    "preemptions": "num_preemptions",
    "drafted_tokens": "spec_decode_num_draft_tokens",
    "accepted_tokens": "spec_decode_num_accepted_tokens",
    "first_token_seconds": "time_to_first_token_seconds",
    "gap_seconds": "inter_token_latency_seconds",
    "request_seconds": "e2e_request_latency_seconds",
}
"""Our name of a metric -> vLLM's names of it. So dashboards for vLLM can show this server."""


class Metrics:
    def __init__(self, load: Callable[[], Load], kv_bytes: int, model: str) -> None:
        """`load` is called whenever the metrics are read. `kv_bytes`: memory for K/V. `model`: the model's name for
        clients."""
        own = CollectorRegistry()
        gauges = {
            "requests_running": ("Requests that hold K/V", lambda: load().running),
            "requests_waiting": ("Requests in the queue", lambda: load().waiting),
            "kv_bytes": ("Bytes of K/V of running requests", lambda: load().kv_bytes),
            "kv_usage": ("K/V of running requests over the memory for K/V", lambda: load().kv_bytes / kv_bytes),
            "idle_kv_bytes": ("Bytes of K/V kept for later requests", lambda: load().idle_kv_bytes),
        }
        for name, (text, function) in gauges.items():
            Gauge(PREFIX + name, text, registry=own).set_function(function)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(PREFIX + name, text, labels, registry=own)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(PREFIX + name, text, buckets=SECONDS, registry=own)

        self.requests = counter("requests", "Answers by outcome", "outcome")
        self.answers = counter("answers", "Whole answers by their reason to end", "finished_reason")
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts")
        self.cached_tokens = counter("cached_tokens", "Tokens of prompts not computed")
        self.generated_tokens = counter("generated_tokens", "Tokens of answers")
        self.preemptions = counter("preemptions", "Requests that lost their K/V for a time")
        self.drafted_tokens = counter("drafted_tokens", "Drafted tokens that were verified")
        self.accepted_tokens = counter("accepted_tokens", "Drafted tokens that became tokens of answers")
        self.steps = histogram("step_seconds", "Time of an engine's step")
        self.first_tokens = histogram("first_token_seconds", "Time from a request to the first token of an answer")
        self.gaps = histogram("gap_seconds", "Time between two tokens of an answer")
        self.times = histogram("request_seconds", "Time from a request to the last token of an answer")
        self._registry = CollectorRegistry()
        self._registry.register(_Renamed(own, {"model_name": model, "engine": "0"}))

    def page(self, accepted: str) -> tuple[bytes, str]:
        """The text of /metrics, and its content type. `accepted`: the header Accept, which may ask for OpenMetrics
        in place of Prometheus' text format."""
        if "application/openmetrics-text" not in accepted:
            return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4
        # No name needs to be escaped, but the library would replace the colons of vLLM's names.
        page = openmetrics.generate_latest(self._registry, escaping=openmetrics.ALLOWUTF8)  # type: ignore[no-untyped-call]
        return page, openmetrics.CONTENT_TYPE_LATEST


class _Renamed(Collector):
    """The metrics of a registry, then those that vLLM has, too, under vLLM's names and with its labels."""

    def __init__(self, own: CollectorRegistry, labels: dict[str, str]) -> None:
        self._own = own
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        """Read the metrics."""
        for metric in self._own.collect():
            yield metric
            names = VLLM.get(metric.name.removeprefix(PREFIX), ())
            for name in (names,) if isinstance(names, str) else names:
                renamed = Metric(f"vllm:{name}", metric.documentation, metric.type)
                renamed.samples = [
                    sample._replace(
                        name=sample.name.replace(metric.name, renamed.name, 1), labels={**self._labels, **sample.labels}
                    )
                    for sample in metric.samples
                ]
                yield renamed


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
                "parts": report.parts,
            },
        )

    def request(self, **fields: Any) -> None:
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
