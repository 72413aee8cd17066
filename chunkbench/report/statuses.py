"""Explains the cells that contain a word instead of a number."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.bench.experiment.values import show_value
from chunkbench.report.columns import Columns
from chunkbench.report.numbers import NOISY_MARK, PROBE_MARK, STATUS_WORD, count

_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
_LONGEST_REASON = 400


def status_lines(groups: Sequence[Group], axes: Sequence[str], columns: Columns, noise: bool = True) -> list[str]:
    """One line for each status and reason, which names all implementations that have them. With `noise`, a last line
    describes all noisy cases."""
    labels_of: dict[tuple[str, str], list[str]] = {}
    for implementation in columns.ids:
        by_reason = _by_reason([(g, g.rows[implementation]) for g in groups if implementation in g.rows])
        for (status, _), entries in by_reason.items():
            word = STATUS_WORD.get(status, status)
            shown = word if word == status else f"{word} ({status})"
            where = _where([group for group, _ in entries], groups, axes)
            labels_of.setdefault((f"{shown} at {where}", _reason(entries)), []).append(columns.name(implementation))
    lines = [f"{', '.join(labels)}: {status}: {reason}" for (status, reason), labels in labels_of.items()]
    return lines + (noise_line(groups) if noise else [])


def probe_lines(groups: Sequence[Group], axes: Sequence[str], columns: Columns) -> list[str]:
    """Warnings about roofline fractions that are impossible, because the machine's limit was measured too low."""
    by_cache: dict[str, list[tuple[float, str]]] = {}  # cold and warm caches have different causes
    for group in groups:
        for implementation, row in group.rows.items():
            if row.timed and row.derived.probe_error:
                text = f"{columns.name(implementation)} at {_point(group, axes)}: {row.derived.probe_error}"
                by_cache.setdefault(row.timed.cache, []).append((row.derived.roofline_fraction or 0.0, text))
    return [
        f"{PROBE_MARK} In {count(len(cases), 'case')} the probe of the machine's limit erred, so the roofline fraction "
        f"is no merit of the kernel; the worst is {max(cases)[1]}"
        for cases in by_cache.values()
    ]


def one_line(text: str) -> str:
    """Remove line breaks, and cut the text at 400 characters."""
    joined = " ".join(text.split())
    return joined if len(joined) <= _LONGEST_REASON else joined[:_LONGEST_REASON] + " ..."


def noise_line(groups: Sequence[Group]) -> list[str]:
    """One line that counts the noisy cases, and gives the worst figures of each kind of noise. Empty without noisy
    cases."""
    rows = [row for group in groups for row in group.rows.values()]
    noisy = [row for row in rows if row.facts.status == "noisy"]
    if not noisy:
        return []
    complaints: dict[str, list[str]] = {}
    for row in noisy:
        for text in one_line(row.facts.reason).split("; "):
            complaints.setdefault(_NUMBER.sub("#", text), []).append(text)
    worst = [f"{max(texts, key=_figures)} ({len(texts)})" for texts in complaints.values()]
    return [f"{NOISY_MARK} noisy, {len(noisy)} of {count(len(rows), 'case')}; at worst: {'; '.join(worst)}"]


def _figures(text: str) -> list[float]:
    return [float(figure.replace(",", "")) for figure in _NUMBER.findall(text)]


def _by_reason(entries: Sequence[tuple[Group, Row]]) -> Mapping[tuple[str, str], list[tuple[Group, Row]]]:
    """Rows without a number, by status and reason. Reasons that differ only in their figures count as one."""
    by_reason: dict[tuple[str, str], list[tuple[Group, Row]]] = {}
    for group, row in entries:
        status = row.facts.status
        if status not in ("ok", "noisy"):
            by_reason.setdefault((status, _NUMBER.sub("#", row.facts.reason)), []).append((group, row))
    return by_reason


def _reason(entries: Sequence[tuple[Group, Row]]) -> str:
    reasons = [row.facts.reason for _, row in entries]
    text = one_line(reasons[0]) or "no reason was recorded"
    return f"{text} (figures of the first case; the others differ)" if len(set(reasons)) > 1 else text


def _where(affected: Sequence[Group], groups: Sequence[Group], axes: Sequence[str]) -> str:
    if len(affected) == len(groups):
        return "every point" if len(groups) > 1 else "the point"
    shown = ", ".join(_point(group, axes) for group in affected[:4])
    more = f" and {len(affected) - 4} more" if len(affected) > 4 else ""
    return f"{shown}{more} ({len(affected)} of {count(len(groups), 'point')})"


def _point(group: Group, axes: Sequence[str]) -> str:
    return "/".join(show_value(group.axes.get(axis)) for axis in axes) or "the point"
