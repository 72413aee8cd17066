from __future__ import annotations

import pytest

from tests.invented_facts import MakeFacts
from tests.report.compare.made_runs import RunMaker


@pytest.fixture
def make(facts: MakeFacts) -> RunMaker:
    return RunMaker(facts)
