"""Why cells hold a word and not a number, said once for each reason and not once for each cell."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from chunkbench.analysis.derive import Row
from chunkbench.analysis.points import show
from chunkbench.report.columns import name
from chunkbench.report.model import Group
from chunkbench.report.numbers import count
from chunkbench.report.tables import NOISY_MARK, PROBE_MARK, STATUS_WORD

_NUMBER = re.compile(r"\d[\d,.]*")
_LONGEST_REASON = 400


def status_lines(groups: Sequence[Group], implementations: Sequence[str], axes: Sequence[str]) -> list[str]:
    """One line for each status and kind of reason, whoever it befell, then one for each kind of noise."""
    who: dict[tuple[str, str], list[str]] = {}
    for implementation in implementations:
        found = _by_kind([(g, g.rows[implementation]) for g in groups if implementation in g.rows], noisy=False)
        for (status, _), places in found.items():
            word = STATUS_WORD.get(status, status)
            said = word if word == status else f"{word} ({status})"
            where = _where([group for group, _ in places], groups, axes)
            label = name(implementation, places[0][1].facts.label)
            who.setdefault((f"{said} at {where}", _reason(places)), []).append(label)
    lines = [f"{', '.join(labels)}: {said}: {reason}" for (said, reason), labels in who.items()]
    noise = _by_kind([(group, row) for group in groups for row in group.rows.values()], noisy=True)
    total = sum(len(group.rows) for group in groups)
    lines += [
        f"{NOISY_MARK} noisy, {len(places)} of {count(total, 'case')}: {_reason(places)}" for places in noise.values()
    ]
    return lines


def probe_lines(groups: Sequence[Group], axes: Sequence[str]) -> list[str]:
    """Roofline fractions above what is possible: the probe's error, which puts every fraction of the run in doubt."""
    return [
        f"{PROBE_MARK} {name(row.facts.implementation, row.facts.label)} at {_point(group, axes)}: "
        f"{row.derived.probe_error} (an error of the probe, not a merit of the kernel)"
        for group in groups
        for row in group.rows.values()
        if row.derived.probe_error
    ]


def one_line(text: str) -> str:
    """Text without line breaks, cut where it stops being a reason and becomes a log."""
    joined = " ".join(text.split())
    return joined if len(joined) <= _LONGEST_REASON else joined[:_LONGEST_REASON] + " ..."


def _by_kind(places: Sequence[tuple[Group, Row]], noisy: bool) -> Mapping[tuple[str, str], list[tuple[Group, Row]]]:
    """Rows that are not ok by status and reason, taking reasons that differ in their figures alone as one."""
    found: dict[tuple[str, str], list[tuple[Group, Row]]] = {}
    for group, row in places:
        status = row.facts.status
        if status != "ok" and (status == "noisy") == noisy:
            found.setdefault((status, _NUMBER.sub("#", row.facts.reason)), []).append((group, row))
    return found


def _reason(places: Sequence[tuple[Group, Row]]) -> str:
    reasons = [row.facts.reason for _, row in places]
    text = one_line(reasons[0]) or "no reason was recorded"
    return f"{text} (figures of the first; the others differ)" if len(set(reasons)) > 1 else text


def _where(places: Sequence[Group], groups: Sequence[Group], axes: Sequence[str]) -> str:
    if len(places) == len(groups):
        return "every point" if len(groups) > 1 else "the point"
    shown = ", ".join(_point(group, axes) for group in places[:4])
    rest = f" and {len(places) - 4} more" if len(places) > 4 else ""
    return f"{shown}{rest} ({len(places)} of {count(len(groups), 'point')})"


def _point(group: Group, axes: Sequence[str]) -> str:
    return "/".join(show(group.axes.get(axis)) for axis in axes) or "the point"
