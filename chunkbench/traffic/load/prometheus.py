"""Pages for Prometheus, in its text format."""

from __future__ import annotations

import math

from chunkbench.pins import SERVING_INSTALL

try:
    from prometheus_client.parser import text_string_to_metric_families
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"pages of metrics need prometheus_client: {SERVING_INSTALL}", name=error.name) from error


def sum_of(metrics: str, name: str) -> float | None:
    """Sum of the samples of a metric; None if there is none, or one is no finite number."""
    lines = "\n".join(line for line in metrics.split("\n") if line.lstrip().startswith(name))  # a page is long
    try:
        samples = [sample for family in text_string_to_metric_families(lines) for sample in family.samples]
        values = [float(sample.value) for sample in samples if sample.name == name]
    except (ValueError, IndexError, OverflowError):  # the parser's, for lines that are not in the format
        return None
    return sum(values) if values and math.isfinite(sum(values)) else None
