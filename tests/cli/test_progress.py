from __future__ import annotations

from pathlib import Path

import pytest

from chunkbench.cli.progress import RepeatProgress, RunProgress


@pytest.mark.parametrize("kind", [RunProgress, RepeatProgress])
def test_problems_are_told_also_when_progress_is_not(
    kind: type[RunProgress | RepeatProgress], capsys: pytest.CaptureFixture[str]
) -> None:
    progress = kind(quiet=True)
    progress.started(Path("somewhere/1"), 3, 0)
    progress.problem("a machine was lost")
    assert capsys.readouterr() == ("", "a machine was lost\n")
