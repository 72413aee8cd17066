"""Shows a comparison as a document, the worst cases first, and writes it into files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from chunkbench.bench.analysis import points
from chunkbench.bench.analysis.points import describe
from chunkbench.bench.experiment.values import show_value
from chunkbench.report.compare.verdicts import (
    CaseVerdict,
    Comparison,
    FailOn,
    Settings,
    SideSummary,
    Summary,
    Verdict,
)
from chunkbench.report.formats import render
from chunkbench.report.model import Cell, Check, Column, Emphasis, Output, Suite, Table
from chunkbench.report.numbers import NOTHING, count, ratio_span, significant, times

_EMPHASIS: Mapping[Verdict, Emphasis] = {
    "incorrect": "failed",
    "slower": "failed",
    "missing": "failed",
    "inconclusive": "noisy",
    "faster": "best",
    "new": "plain",
    "same": "quiet",
}
_CALIBRATION = (
    "calibration: time of fixed work for HEAD over its time for BASE (arithmetic, memory sweep, read bandwidth, matrix "
    "rate), lowest and highest; HEAD / BASE is raw, the verdict is on HEAD / BASE divided by the calibration ratio"
)
_ALL = "--format json prints all, --out FOLDER writes them to comparison.json"
"""Tells the reader where all cases are, if a document leaves out some."""
_HEADLINE_CASES = 3
"""Largest number of cases that the headline names."""


def document(comparison: Comparison, most_rows: int | None = None, most_notes: int | None = None) -> Output:
    """Show a comparison as a document, the worst cases first. The table has at most `most_rows` cases. At most
    `most_notes` cases get a note."""
    shown = comparison.cases if most_rows is None else comparison.cases[:most_rows]
    head, left_out = comparison.head, len(comparison.cases) - len(shown)
    summaries = [_summary_table(comparison.summaries)] if comparison.summaries else []
    axes = varying(comparison.cases)
    notes = [_note(case, axes) for case in shown if case.verdict != "same" or case.reason]
    hidden = len(notes) - len(notes[:most_notes])
    more = [f"{count(hidden, 'more case')} with notes: {_ALL}"] if hidden else []
    more += [f"{count(left_out, 'more case')}, none worse than these: {_ALL}"] if left_out else []
    return Output(
        title=f"{head.experiment or 'HEAD'}: {_revision(head)} against {_revision(comparison.base)}",
        warnings=(*_machine_line(comparison), *comparison.warnings),
        verdict=verdict_line(comparison),
        headline=_headline(comparison),
        tables=(_case_table(shown, comparison.settings), *summaries),
        statuses=(*notes[:most_notes], *more),
        legend=_legend(comparison),
        footer=tuple(_footer(comparison)),
        headings=("Notes on single cases", "Columns", "How it was compared"),
        data=comparison.model_dump(mode="json"),
        suite=_suite(comparison),
    )


def within(comparison: Comparison, limit: int) -> Output:
    """Show a comparison as a document of at most `limit` bytes in Markdown. The best cases are left out."""
    rows = len(comparison.cases)
    while True:
        shown = document(comparison, rows)
        if len(render(shown, "markdown").encode()) <= limit or rows == 0:
            return shown
        rows = rows * 2 // 3


def _suite(comparison: Comparison) -> Suite:
    axes = varying(comparison.cases)
    return Suite(
        f"chunkbench compare {comparison.head.experiment}".strip(),
        {
            name: f"{side.path} {side.commit or side.version}"
            for name, side in (("base", comparison.base), ("head", comparison.head))
        },
        [_check(case, axes, comparison.settings.fail_on) for case in comparison.cases],
        verdict_line(comparison),
    )


def _check(case: CaseVerdict, axes: Sequence[str], fail_on: Sequence[FailOn]) -> Check:
    suspicious = case.verdict in ("incorrect", "slower", "missing", "inconclusive")
    return Check(
        case.name if case.metric == "latency" else f"{case.name} {case.metric}",
        case.implementation,
        place(case, axes),
        case.verdict,
        f"{change(case)} {case.reason}".strip(),
        ("broken" if case.failed else "failed")
        if case.verdict in fail_on
        else "suspicious"
        if suspicious
        else "passed",
    )


def verdict_line(comparison: Comparison) -> str:
    """The number of cases for each verdict, and the exit code, in one line."""
    counts = ", ".join(f"{number} {verdict}" for verdict, number in comparison.counts.items())
    unmeasured = f"; {count(comparison.unmeasured, 'case')} measured by neither" if comparison.unmeasured else ""
    result = {0: "passes", 1: "fails", 3: "fails", 4: "inconclusive"}[comparison.exit_code]
    return f"{counts}{unmeasured}: {result} (exit code {comparison.exit_code})."


def _machine_line(comparison: Comparison) -> tuple[str, ...]:
    """One line on the speed of the machine itself; empty if the speed is unknown, or if both sides were interleaved."""
    speeds = {entry.work: entry.speed for entry in comparison.machine}
    if not speeds:
        return ()
    least, most = (f"{value:.2f}x" for value in (min(speeds.values()), max(speeds.values())))
    span = least if least == most else f"{least} to {most}"
    works = ", ".join(f"{work} {speed:.2f}x" for work, speed in speeds.items())
    return (f"the machine itself ran at {span} of its speed for BASE ({works})",)


def place(case: CaseVerdict, varying: Sequence[str]) -> str:
    """A short name of a case: the implementation, the varying axes, and the metric if it is not the latency."""
    axes = describe(case.axes, varying)
    metric = "" if case.metric == "latency" else f", {case.metric}"
    return f"{case.implementation}{f' at {axes}' if axes else ''}{metric}"


def varying(cases: Sequence[CaseVerdict]) -> list[str]:
    """Names of the axes that have more than one value in these cases."""
    return points.varying([(case.axes, []) for case in cases])


def change(case: CaseVerdict) -> str:
    """The ratio HEAD / BASE and its interval as text: `1.12x (1.08x to 1.15x)`."""
    if case.ratio is None:
        return NOTHING
    if case.low is None or case.high is None:
        return times(case.ratio)
    if case.low == case.high:
        return f"{case.ratio:.3f}x"
    return f"{case.ratio:.3f}x ({case.low:.3f}x to {case.high:.3f}x)"


def _case_table(cases: Sequence[CaseVerdict], settings: Settings) -> Table:
    many_metrics = len({case.metric for case in cases}) > 1
    calibrated = any(case.calibration_low is not None for case in cases)
    unit = "" if many_metrics else settings.unit

    def side(name: str, value: Callable[[CaseVerdict], float | None]) -> Column[CaseVerdict]:
        full = f"{name} ({unit})" if unit else name
        return Column(
            full, lambda case: NOTHING if value(case) is None else significant(value(case) or 0.0), (name, unit)
        )

    def axis_column(axis: str) -> Column[CaseVerdict]:
        return Column(axis, lambda case: show_value(case.axes.get(axis)), align="left")

    names: list[Column[CaseVerdict]] = [
        Column("verdict", lambda case: Cell(case.verdict, _EMPHASIS[case.verdict]), align="left"),
        Column("implementation", lambda case: case.implementation, align="left"),
        *map(axis_column, varying(cases)),
    ]
    if many_metrics:
        names.append(Column("metric", lambda case: case.metric, align="left"))
    calibration: Column[CaseVerdict] = Column(
        "calibration ratio",
        lambda case: ratio_span(case.calibration_low, case.calibration_high, 2),
        ("calibration", "ratio"),
    )
    columns = (
        *names,
        side("BASE", lambda case: case.base),
        side("HEAD", lambda case: case.head),
        Column("HEAD / BASE", lambda case: NOTHING if case.ratio is None else f"{case.ratio:.3f}x", ("HEAD /", "BASE")),
        Column("interval", lambda case: ratio_span(case.low, case.high)),
        *([calibration] if calibrated else []),
        Column(
            "compared",
            lambda case: f"{case.base_units}:{case.head_units}" if case.head_units else NOTHING,
            ("com-", "pared"),
        ),
    )
    figure = "" if many_metrics else f": {settings.label}"
    return Table(f"Cases, worst first{figure}", columns, cases, keys=len(names))


def _summary_table(summaries: Sequence[Summary]) -> Table:
    columns: tuple[Column[Summary], ...] = (
        Column("implementation", lambda summary: summary.implementation, align="left"),
        Column("cases", lambda summary: str(summary.cases)),
        Column("HEAD / BASE, geometric mean", lambda summary: f"{summary.ratio:.3f}x", ("HEAD /", "BASE")),
        Column("interval", lambda summary: ratio_span(summary.low, summary.high)),
    )
    return Table("By implementation, geometric means", columns, summaries)


def _note(case: CaseVerdict, axes: Sequence[str]) -> str:
    text = f"{place(case, axes)} is {case.verdict}"
    if case.reason:
        text += f": {case.reason}"
    if case.command and case.verdict in ("slower", "faster", "inconclusive", "incorrect"):
        text += f". To measure it again: {case.command}"
    return text


def _headline(comparison: Comparison) -> str:
    axes = varying(comparison.cases)
    worst = [case for case in comparison.cases if case.verdict in ("incorrect", "slower", "missing")][:_HEADLINE_CASES]
    changes = [f"{place(case, axes)} {change(case) if case.ratio is not None else case.reason}" for case in worst]
    return f"Worst: {'; '.join(changes)}." if changes else ""


def _legend(comparison: Comparison) -> tuple[str, ...]:
    settings = comparison.settings
    calibrated = any(case.calibration_low is not None for case in comparison.cases)
    units = {"pair": "pairs of processes", "process": "processes", "round": "rounds"}
    compared = dict.fromkeys(units[case.unit] for case in comparison.cases if case.head_units)
    return (
        f"BASE, HEAD: the median {settings.label} over all rounds of that side; HEAD / BASE: the ratio, with an "
        f"interval of {settings.case_confidence:.4%} confidence",
        f"compared: number of {' or '.join(compared) or 'processes'} of BASE:HEAD",
        *((_CALIBRATION,) if calibrated else ()),
        f"slower, faster: the whole interval lies beyond {settings.threshold:.1%}; same: the whole interval lies "
        f"within {settings.threshold:.1%}; inconclusive: neither",
    )


def _footer(comparison: Comparison) -> list[tuple[str, str]]:
    settings = comparison.settings
    shares = count(settings.timed_cases, "timed case")
    shares += f" with up to {settings.looks} tests each," if settings.looks > 1 else ""
    lines = [
        ("BASE", _side(comparison.base)),
        ("HEAD", _side(comparison.head)),
        (
            "certainty",
            f"{settings.confidence:.1%} for {shares} together (Bonferroni: {settings.case_confidence:.4%} each); "
            + (
                "HEAD and BASE interleaved, pairs compared (Wilcoxon's signed-rank interval)"
                if settings.interleaved
                else "HEAD and BASE measured at different times (Mann-Whitney interval)"
            ),
        ),
    ]
    differences = [f"{diff.what}: {diff.base} / {diff.head}" for diff in comparison.differences]
    lines.append(("differs", "; ".join(differences) if differences else "nothing in hardware, settings or versions"))
    if comparison.command:
        lines.append(("to repeat", comparison.command))
    return lines


def _side(side: SideSummary) -> str:
    when = f", {side.started_at}" if side.started_at else ""
    processes = f"{side.processes} processes" if side.processes > 1 else "1 process"
    counts = f"{count(side.cases, 'case')}, {processes}, {count(side.rounds, 'round')}"
    return f"{side.path} ({_revision(side)}{when}; {counts})"


def _revision(side: SideSummary) -> str:
    return side.commit or f"version {side.version}"


FILES = {
    "comparison.txt": "table",
    "comparison.md": "markdown",
    "comparison.json": "json",
    "comparison.xml": "junit",
    "annotations.txt": "github",
}
"""Name of each file that `write_all` writes -> its format."""
PULL_REQUEST_BYTES = 60_000
"""Largest size of a comment on a pull request. GitHub allows 65,536 characters; the difference is left for other text.
"""
STEP_SUMMARY_BYTES = 1_000_000
"""Largest size of the summary of a step in a GitHub workflow. GitHub allows 1 MiB."""
_TERMINAL_ROWS, _TERMINAL_NOTES = 40, 5
"""Largest number of cases, and of notes on cases, on a terminal. They have to fit on one screen."""


def output(comparison: Comparison, form: str) -> Output:
    """The comparison as a document for this format. Cases are left out so that `table` fits on one screen, and
    `markdown` into a comment on a pull request."""
    if form == "table":
        return document(comparison, _TERMINAL_ROWS, _TERMINAL_NOTES)
    return within(comparison, PULL_REQUEST_BYTES) if form == "markdown" else document(comparison)


def step_summary(comparison: Comparison) -> str:
    """Markdown for the summary of a step in a GitHub workflow."""
    return render(within(comparison, STEP_SUMMARY_BYTES), "markdown")


def write_all(comparison: Comparison, folder: Path) -> list[Path]:
    """Write the comparison into `folder` in every format, and return the paths.

    If one file fails, the others are still written. Then the first error is raised.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    errors: list[Exception] = []
    for name in (*FILES, "summary.md"):
        try:
            form = FILES.get(name)
            text = step_summary(comparison) if form is None else render(output(comparison, form), form)
            (folder / name).write_text(text, encoding="utf-8")
            written.append(folder / name)
        except Exception as error:  # an error in one format must not lose the other reports
            errors.append(error)
    if errors:
        raise errors[0]
    return written
