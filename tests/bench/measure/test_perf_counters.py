"""What `perf stat` prints, and machines where it counts nothing."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from time import perf_counter

import pytest

from chunkbench.bench.measure import perf_counters
from chunkbench.bench.measure.perf_counters import NoCounters, counted, parse

PRINTED = """\
# started on Thu Nov 26 20:00:00 2026

2000000,,cycles,500123,100.00,,
5000000,,instructions,500123,100.00,2.50,insn per cycle
<not supported>,,cache-misses,0,100.00,,
12.50,msec,task-clock,12500000,100.00,0.99,CPUs utilized
"""


def test_counts_are_read() -> None:
    assert parse(PRINTED) == {"cycles": 2e6, "instructions": 5e6, "task-clock": 12.5}


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        ("<not supported>,,cycles,0,100.00,,\n", "cycles not supported here"),
        ("<not counted>,,cycles,0,0.00,,\n", "cycles not counted here"),
        (
            "Error:\nAccess to performance monitoring and observability operations is limited.\n",
            "Access to performance",
        ),
        ("event syntax error: 'cycles,foo'\n   \\___ parser error\n", "event syntax error"),
        ("event syntax error: 'cyclesx,instructions,cache-references,cache-misses,dTLB..'\n", "event syntax error"),
        ("", "printed nothing"),
        *((f"{value},,cycles,5,100.00,,\n", f"{value} cycles: not a count") for value in ("nan", "inf", "-inf", "-1")),
    ],
)
def test_what_is_no_count_says_why(printed: str, told: str) -> None:
    with pytest.raises(NoCounters, match=told):
        parse(printed)


def test_a_machine_without_perf_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoCounters, match="perf does not start: No such file"):
        counted(os.getpid(), lambda: 1)


@pytest.mark.parametrize("deaf", ["true", "-p"])
def test_a_perf_that_does_not_end_is_ended(deaf: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    perf = tmp_path / "perf"
    perf.write_text(
        f"""#!/bin/sh
        echo 5,,cycles,5,100.00,, >&2
        trap "" INT
        for word; do if [ "$word" = {deaf} ]; then sleep 100; fi; done
        """
    )
    perf.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(perf_counters, "_END_S", 0.2)
    with pytest.raises(NoCounters, match=r"perf did not end within 0\.2 s"):
        counted(os.getpid(), lambda: 1)


def test_an_error_of_the_work_is_the_one_that_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    perf = tmp_path / "perf"
    perf.write_text("#!/bin/sh\necho 5,,cycles,5,100.00,, >&2\n")
    perf.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ZeroDivisionError):
        counted(os.getpid(), lambda: 1 // 0)


def test_this_machine_counts_or_says_why() -> None:
    try:
        counts, reason = counted(os.getpid(), lambda: 1), ""
    except NoCounters as error:
        counts, reason = {}, str(error)
    assert counts.get("cycles") or re.search("not supported|not counted|does not start|[Aa]ccess", reason), reason


@pytest.mark.skipif(shutil.which("perf") is None, reason="perf is not installed")
def test_a_clock_that_every_machine_has_is_counted_for_each_unit_of_work() -> None:
    def work() -> int:
        end = perf_counter() + 0.2
        while perf_counter() < end:
            pass
        return 4

    try:
        counts = counted(os.getpid(), work, ["task-clock"])
    except NoCounters as reason:
        pytest.skip(f"not permitted here: {reason}")
    # 200 ms of one thread, in four units; a busy machine gives less time.
    assert 5 < counts["task-clock"] < 80
