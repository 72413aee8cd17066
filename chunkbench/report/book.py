"""Several runs as one report: what reproduces and what does not, every run's report and figure, the claims."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import get_args

from chunkbench.paper.claims import Claim, Verdict, claims
from chunkbench.report.build import build
from chunkbench.report.claims import document
from chunkbench.report.model import Document, Table
from chunkbench.report.report import Report
from chunkbench.report.unmeasured import tables
from chunkbench.store import Manifest, Run


@dataclass(frozen=True)
class Chapter:
    """One run."""

    anchor: str
    report: Report
    manifest: Manifest
    raw: str
    """Where its raw data lies, as seen from the report's own folder."""
    command: str
    minutes: float | None
    """From its start to its end; None where it did not say."""


@dataclass(frozen=True)
class Book:
    """Everything that a reader of several runs is shown, in reading order."""

    title: str
    machine: str
    version: str
    chapters: Sequence[Chapter]
    claims: Sequence[Claim]
    """Of a book of one chapter, those that its run says something of."""

    unmeasured: Sequence[Table]
    """What the paper has and no run measures."""

    def by_verdict(self) -> list[tuple[Verdict, list[Claim]]]:
        """Claims by what became of them, those that hold first."""
        found = [(verdict, [one for one in self.claims if one.verdict == verdict]) for verdict in get_args(Verdict)]
        return [(verdict, members) for verdict, members in found if members]

    def documents(self) -> list[Document]:
        """The same in the forms that know documents only: summary, runs, what the paper has besides."""
        summary = document(self.claims, [chapter.anchor for chapter in self.chapters])
        rest = Document("What the paper has and no run here measures", (), "", "", tuple(self.unmeasured), (), (), ())
        runs: list[Document] = [chapter.report for chapter in self.chapters]
        return [summary, *runs, *([rest] if self.unmeasured else [])]


def build_book(runs: Sequence[Run], folder: Path, reports: Sequence[Report] | None = None) -> Book:
    """`folder` is where the report will lie, so that its links lead to the runs. Of one run, a book of one chapter.

    `reports` saves building those of the runs again.
    """
    chapters: list[Chapter] = []
    for run, report in zip(runs, reports or map(build, runs), strict=True):
        name = run.manifest.experiment.name or run.path.name
        taken = {chapter.anchor for chapter in chapters}
        anchor = next(a for a in [name, *(f"{name}-{n}" for n in range(2, len(runs) + 2))] if a not in taken)
        chapters.append(
            Chapter(
                anchor,
                report,
                run.manifest,
                os.path.relpath(run.path, folder),
                " ".join(["chunkbench", *run.manifest.command[1:]]),
                _minutes(run.manifest),
            )
        )
    first, judged = runs[0].manifest, claims([chapter.report.rows for chapter in chapters])
    commit = first.git.named(10)
    return Book(
        title=chapters[0].report.title if len(chapters) == 1 else "The ChunkAttention paper, rerun",
        machine="; ".join(_machines(runs)),
        version=f"chunkbench {first.chunkbench_version}{f', git {commit}' if commit else ''}",
        chapters=chapters,
        unmeasured=tables() if len(chapters) > 1 else (),
        claims=[one for one in judged if one.rows or len(chapters) > 1],
    )


def _machines(runs: Sequence[Run]) -> list[str]:
    """What all of them were measured on."""
    names = [name for run in runs for name in run.manifest.machine_names or ("machine not recorded",)]
    return list(dict.fromkeys(names))


def _minutes(manifest: Manifest) -> float | None:
    try:
        started, finished = (datetime.fromisoformat(at or "") for at in (manifest.started_at, manifest.finished_at))
        return (finished - started).total_seconds() / 60
    except (TypeError, ValueError):  # not said, or only one of them with a time zone
        return None
