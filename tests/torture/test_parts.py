"""A short version of each part of `make torture`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.torture.parts import LONG, PARTS, WITH_SERVER
from tests.torture.trials import Harm, Part, Trial, Unavailable, torture

SECONDS = 0.2


@pytest.mark.parametrize(
    "part", [part for part in PARTS if part.name not in LONG + WITH_SERVER], ids=lambda part: part.name
)
def test_short_version(part: Part) -> None:
    try:
        *_, counts = torture(replace(part, open=part.short or part.open), 0, SECONDS)
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert not counts.failures, "\n".join(f"trial {number}: {why}" for number, why in counts.failures.items())


@contextmanager
def odd_trials_fail() -> Iterator[Harm]:
    def harm(trial: Trial) -> int:
        (trial.folder / "evidence").write_text(str(trial.chance.random()))
        if trial.number % 2:
            raise AssertionError("odd")
        return 10

    yield harm


def test_trials_are_counted_and_what_failed_is_kept(tmp_path: Path) -> None:
    part = Part("odd trials", odd_trials_fail)
    *_, counts = torture(part, 3, 60, most=4, keep=tmp_path)
    assert (counts.trials, counts.tried) == (4, 22)
    assert counts.failures == {3: "odd", 5: "odd"}
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["odd-trials-3", "odd-trials-5"]
    drawn = (tmp_path / "odd-trials-3" / "evidence").read_text()
    for _ in torture(part, 3, 60, most=1, keep=tmp_path):
        assert (tmp_path / "odd-trials-3" / "evidence").read_text() == drawn


def test_the_page_lists_every_part() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()
    _, _, rows = page.partition("| part | what is done | what must hold |")
    names = re.findall(r"^\| ([^|]+) \|", rows.partition("\n\n")[0], re.MULTILINE)
    assert names[1:] == [part.name for part in PARTS]  # the first is the line below the heads
