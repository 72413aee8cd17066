"""Makes one report of several runs: the report and figure of each run, and the claims with their verdicts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from pathlib import Path

from chunkbench.bench.analysis.ranking import contests, standings
from chunkbench.bench.store import Manifest, Run
from chunkbench.report import ranking
from chunkbench.report.build import build
from chunkbench.report.claims import Claim, claims_by_machine
from chunkbench.report.claims.document import document, parts_of, summary
from chunkbench.report.layout import Report
from chunkbench.report.model import Document, Table
from chunkbench.report.unmeasured import tables

_LEADING = ("table3", "figure5")


@dataclass(frozen=True)
class Chapter:
    """One run in a report on several runs."""

    anchor: str
    report: Report
    manifest: Manifest
    raw: str
    """Path of the run's raw data, relative to the folder of the report."""
    command: str
    minutes: float | None
    """Minutes that the run took. None if the manifest lacks the start or the end of the run."""

    @property
    def experiment(self) -> str:
        return self.manifest.experiment.name

    @property
    def machine_kind(self) -> str:
        """The kind of machine that measured this chapter. Empty if the run used only one kind of machine."""
        return next((machine.kind for machine in self.manifest.machines.values()), "")


@dataclass(frozen=True)
class Book:
    """A report on several runs, in reading order."""

    title: str
    machine: str
    version: str
    chapters: Sequence[Chapter]
    claims: Mapping[str, Sequence[Claim]]
    """Machine -> the claims, judged by the runs of this machine."""
    unmeasured: Sequence[Table]
    """Tables of the paper that no run measures."""
    rankings: Sequence[Table] = ()
    """One table for each machine with several runs that rank implementations. The table covers the points of all these
    runs."""

    @property
    def machine_kinds(self) -> list[str]:
        """The kinds of machines between which the reader can choose. Empty if there is only one."""
        kinds = list(dict.fromkeys(chapter.machine_kind for chapter in self.chapters if chapter.machine_kind))
        return kinds if len(kinds) > 1 else []

    @property
    def leading(self) -> list[Chapter]:
        """The chapters whose figures come first: Table 3 and Figure 5. If the book has neither, the first chapter."""
        named = [chapter for name in _LEADING for chapter in self.chapters if chapter.experiment == name]
        return named or list(self.chapters[:1])

    @property
    def verdict(self) -> str:
        """The result of the runs, in one line."""
        several = len({chapter.machine_kind for chapter in self.leading}) > 1
        sentences = [
            f"{chapter.machine_kind}: {chapter.report.headline}" if several else chapter.report.headline
            for chapter in self.leading
        ]
        if len(self.chapters) > 1 and self.claims:
            sentences.append(summary(self.claims))
        return " ".join(filter(None, sentences))

    @property
    def documents(self) -> list[Document]:
        """The content of all formats except HTML: the claims, the runs, other tables of the paper."""
        summary = document(self.claims, [chapter.anchor for chapter in self.chapters])
        ranked = Document(title=ranking.TITLE, tables=tuple(self.rankings), legend=(ranking.LEGEND,))
        others = Document(title="Tables of the paper that no run here measures", tables=tuple(self.unmeasured))
        runs = [chapter.report for chapter in self.chapters]
        return [summary, *runs, *([ranked] if self.rankings else []), *([others] if self.unmeasured else [])]

    @property
    def book(self) -> Book:
        """The report as one HTML page."""
        return self


def build_book(runs: Sequence[Run], folder: Path, reports: Sequence[Report] | None = None) -> Book:
    """Make a book with one chapter for each run.

    Links to the runs are relative to `folder`, which will hold the report. `reports`: the reports of the runs, if they
    exist already.
    """
    chapters: list[Chapter] = []
    built = list(reports or map(build, runs))
    titles = Counter(report.title for report in built)
    for run, report in zip(runs, built, strict=True):
        if titles[report.title] > 1:  # else chapters would have equal titles
            report = replace(report, title=f"{report.title} ({run.path.name})")
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
    experiments = dict.fromkeys(run.manifest.experiment.name for run in runs)
    first = runs[0].manifest
    parts = [part for one in chapters for part in parts_of(one.anchor, one.manifest, one.report.rows)]
    judged = claims_by_machine(parts)
    decided = {claim.id for claims in judged.values() for claim in claims if claim.rows or len(experiments) > 1}
    commit = first.git.named(10)
    return Book(
        title=first.experiment.heading if len(experiments) == 1 else "The ChunkAttention paper, rerun",
        machine="; ".join(_machines(runs)),
        version=f"chunkbench {first.chunkbench_version}{f', git {commit}' if commit else ''}",
        chapters=chapters,
        unmeasured=tables(list(experiments)) if len(experiments) > 1 else (),
        rankings=_rankings(chapters),
        claims={machine: [claim for claim in claims if claim.id in decided] for machine, claims in judged.items()}
        if decided
        else {},
    )


def _rankings(chapters: Sequence[Chapter]) -> list[Table]:
    """A table for each machine with several runs whose figure is a ranking."""
    by_machine: dict[str, list[Chapter]] = {}
    for chapter in chapters:
        if chapter.manifest.experiment.figure == "ranking":
            by_machine.setdefault(" and ".join(chapter.manifest.machine_names), []).append(chapter)
    found = []
    for machine, ranked in by_machine.items():
        if len(ranked) > 1:
            compared = [contests(one.report.groups, one.manifest.experiment.confidence) for one in ranked]
            table = ranking.ranking_table(machine, standings(chain(*compared)), ranked[0].report.columns.name)
            found.append(table)
    return found


def _machines(runs: Sequence[Run]) -> list[str]:
    """Names of all machines that measured the runs, each once."""
    names = [name for run in runs for name in run.manifest.machine_names or ("machine not recorded",)]
    return list(dict.fromkeys(names))


def _minutes(manifest: Manifest) -> float | None:
    try:
        started, finished = (datetime.fromisoformat(at or "") for at in (manifest.started_at, manifest.finished_at))
        return (finished - started).total_seconds() / 60
    except (TypeError, ValueError):  # a time is missing, or only one of the two times has a time zone
        return None
