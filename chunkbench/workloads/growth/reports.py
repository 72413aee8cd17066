"""The operations `report_rows` and `report_runs`, on runs whose times are drawn: nothing must be measured before."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from chunkbench.bench.experiment import load_experiment
from chunkbench.bench.store import DecodeResult, RunWriter, open_run
from chunkbench.report.book import build_book
from chunkbench.report.files import write_all
from chunkbench.report.formats import render
from chunkbench.workloads.growth.methods import Sample
from chunkbench.workloads.growth.result import GrowthPoint

_IMPLEMENTATIONS = ("chunk_attn", "paged_attn", "paged_attn_star", "naive", "shared_prefix_matmul")
_ROUNDS, _ROWS_OF_A_RUN = 8, 40


def _write_run(folder: Path, rows: int, seed: int = 0) -> None:
    """Write a run of decode attention with this number of rows, in whole points."""
    lengths = [64 * (1 + number) for number in range(max(1, rows // len(_IMPLEMENTATIONS)))]
    text = f"implementations: [{', '.join(_IMPLEMENTATIONS)}]\nsweep:\n  - {{n_p: {lengths}, n_s: 0, n_c: 1}}\n"
    source = folder.with_suffix(".yaml")
    source.write_text(text)
    experiment = load_experiment(source)
    chance = random.Random(seed)
    points = experiment.points("cpu", "bfloat16")
    described = experiment.model_dump(mode="json", exclude={"path"}) | {"source": text}
    writer = RunWriter.create(folder, {"experiment": described, "points": len(points), "seed": seed})
    try:
        for point in points:
            cases = [
                DecodeResult.of_case(
                    case,
                    experiment=experiment.name,
                    label=case.implementation,
                    status="ok",
                    steps=(1,),
                    samples_us=tuple((point.n_p * chance.uniform(1, 1.1),) for _ in range(_ROUNDS)),
                    groups=(0,) * _ROUNDS,
                )
                for case in experiment.cases(point)
            ]
            writer.append(cases)
    finally:
        writer.close()


@contextmanager
def rows(point: GrowthPoint) -> Iterator[Sample]:
    with tempfile.TemporaryDirectory(prefix="chunkbench-growth-") as folder:
        path = Path(folder) / "run"
        _write_run(path, point.size)

        def sample() -> float:
            begun = perf_counter()
            write_all(open_run(path))
            return perf_counter() - begun

        yield sample


@contextmanager
def runs(point: GrowthPoint) -> Iterator[Sample]:
    with tempfile.TemporaryDirectory(prefix="chunkbench-growth-") as folder:
        paths = [Path(folder) / f"run-{number}" for number in range(point.size)]
        for number, path in enumerate(paths):
            _write_run(path, _ROWS_OF_A_RUN, number)

        def sample() -> float:
            begun = perf_counter()
            _write_page(paths, Path(folder))
            return perf_counter() - begun

        yield sample


def _write_page(paths: Sequence[Path], folder: Path) -> None:
    book = build_book([open_run(path) for path in paths], folder)
    (folder / "page.html").write_text(render(book, "html"), encoding="utf-8")
