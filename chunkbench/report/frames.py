"""A run as a pandas table: `chunkbench.load`."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from chunkbench.bench import workload
from chunkbench.bench.analysis.derive import Derived
from chunkbench.bench.store import open_run
from chunkbench.report.printed import rows
from chunkbench.report.records import added, values

if TYPE_CHECKING:
    import pandas as pd


def load(run: Path | str) -> pd.DataFrame:
    """A run's cases as a table: one row per case, one column per fact and figure; lists stay lists.

    `run` is a run directory or its `cases.jsonl`. Raises `RunError` if there is no run to read.
    """
    import pandas as pd

    opened = open_run(run)
    experiment = opened.manifest.experiment
    kind = workload.get(experiment.kind)
    metrics = kind.layout().metrics
    figures = [metric.name for metric in added(kind.result, metrics)]
    columns = [*kind.result.model_fields, *(field.name for field in fields(Derived)), *figures]
    table = [values(row, metrics) for row in rows(opened.cases, experiment.baseline, experiment.confidence)]
    return pd.DataFrame(table, columns=columns)
