"""Loads a run as a pandas table: `chunkbench.load`."""

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
    """Load the cases of a run as a pandas table. Each case is a row; each fact and each figure is a column.

    `run` is a run directory, or the file `cases.jsonl` in it. A fact with several values is a list. Raises `RunError`
    if there is no run.
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
