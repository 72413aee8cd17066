"""Profiles: their numbers and reports."""

from __future__ import annotations

import json
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from chunkbench.bench.store.profile import Operator, WatchedFacts
from chunkbench.report.figures.style import styled
from chunkbench.report.formats import render
from chunkbench.run_error import RunError
from chunkbench.workloads.decode.profile_document import Overlap, document, overlap
from chunkbench.workloads.decode.profile_figure import draw
from chunkbench.workloads.decode.profile_trace import trace_json
from tests.invented_runs import MakeFacts, profile
from tests.workloads.made import check_inside


def _words(picture: Figure) -> list[Text]:
    """All texts but ticks, of which some lie outside of the limits."""
    of_axes = [text for plot in picture.axes for text in (plot.title, plot.xaxis.label, plot.yaxis.label)]
    return [*picture.texts, *of_axes, *picture.legends[0].get_texts()]


WATCHED = WatchedFacts(us=10_000, operators=[Operator("aten::bmm", 2, 6000), Operator("aten::mul", 1, 1000)])


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"read": 9.4, "compute": 3}, ["Reading limits it: reading alone takes 0.94 of the kernel's time."]),
        ({"read": 3, "compute": 9.2}, ["Computing limits it: computing alone takes 0.92 of the kernel's time."]),
        ({"read": 9.2, "compute": 9.5}, ["Reading alone takes 0.92 of the kernel's time, computing alone 0.95."]),
        ({"read": 6, "compute": 5}, ["reading alone takes 0.60 of the kernel's time, computing alone 0.50."]),
        ({"read": 6, "compute": 5}, ["perfect overlap would save at most 4.00 of 10.0 ms"]),
        ({"read": 6, "place_bytes": 1 << 30}, ["takes 0.60 of the kernel's time; computing alone is not known."]),
        # Without a trace: 5 MB at 1 GB/s take 5 ms, 1 GFLOP at 1 TFLOP/s takes 1 ms.
        ({"read": None}, ["Neither memory nor arithmetic", "its own bytes take 0.50 of the decode", "its FLOPs 0.10."]),
        ({"read": None, "ms": 5.2}, ["Reading limits it: its own bytes take 0.96 of the decode"]),
        ({"read": None, "ms": 4}, ["Caches serve a part of what it reads: its own bytes would take 1.25"]),
        ({"read": None, "watched": [WATCHED]}, ["30% of the decode is spent outside of PyTorch's operators."]),
        ({"read": None, "read_bytes": (9_000_000,)}, ["It reads 1.80x the bytes that every implementation must move."]),
        ({}, ["Threads are idle for 43% of the kernel's time", "It reaches 50% of the roofline, which memory sets"]),
    ],
)
def test_the_first_sentences_say_what_the_numbers_say(
    facts: MakeFacts, values: dict[str, Any], told: list[str]
) -> None:
    shown = document(profile(facts, **values), "a point", "a machine")
    text = f"{shown.verdict} {shown.headline}"
    for words in told:
        assert words in text
    if values.get("read") is None and "read" in values:
        assert "alone takes" not in text
    hidden = document(profile(facts, read=9.5, compute=5), "a point", "a machine")
    assert "overlap in part" not in hidden.headline


def test_time_outside_of_the_kernel_comes_first(facts: MakeFacts) -> None:
    given = profile(facts)
    samples = tuple((2 * sample,) for (sample,) in given.case.samples_us)
    case = given.case.model_copy(update={"samples_us": samples})
    shown = document(given.model_copy(update={"case": case}), "a point", "a machine")
    assert shown.verdict.startswith("50% of the decode is spent outside of the kernel: in Python")


def test_tables_with_a_trace(facts: MakeFacts) -> None:
    text = render(document(profile(facts, place_bytes=1 << 30), "n_p=1", "a machine"), "table")
    assert text.startswith("chunk_attn at n_p=1\n")
    lines = [line.split() for line in text.splitlines()]
    assert ["shared", "1", "0.002000", "0.0000640", "2.00", "0.500", "1.00", "0.500", "0", "4.00"] in lines
    assert ["private", "2", "0.01000", "0.0000100", "5.00", "1.25", "4.00", "1.75", "1.00", "13.0"] in lines
    assert ["1", "6.00", "1.00", "3.00"] in lines
    # 5 MB at 1 GB/s take 5 ms of 10, which is the roofline; 1 GFLOP at 1 TFLOP/s takes 1 ms.
    assert "roofline: the longer of first and last line 5,000 50%" in {" ".join(line) for line in lines}
    assert ["arithmetic", "1.00", "GFLOP", "1,000", "GFLOP/s", "1,000", "10%"] in lines
    assert "unavailable: none" in text
    assert "1,074 MB of a unit stay in no core's own cache" in text
    hidden = render(document(profile(facts), "n_p=1", "a machine"), "table")
    assert "hidden: 1.00 of 5.00 ms" in hidden


@pytest.mark.parametrize("read", [None, 6])
def test_the_same_time_is_the_same_share_everywhere(facts: MakeFacts, read: float | None) -> None:
    """The machine slows down: 5 MB take 5, 10, 10 ms of decodes of 10, 20, 14 ms: 50, 50, 71%, the median 50%, while
    the median of the one, 10 ms, is 71% of the median of the other, 14 ms."""
    given = profile(facts, read=read)
    peaks = [
        found.model_copy(update={"read_bytes_per_s": rate})
        for found, rate in zip(given.case.peaks, (1e9, 5e8, 5e8), strict=True)
    ]
    changed = {"samples_us": ((10_000.0,), (20_000.0,), (14_000.0,)), "peaks": tuple(peaks)}
    shown = document(given.model_copy(update={"case": given.case.model_copy(update=changed)}), "a point", "a machine")
    (limits,) = (table for table in shown.tables if table.title.startswith("The machine's limits"))
    rows = [[cell.text for cell in row] for row in limits.rows]
    assert [row[3:] for row in (rows[0], rows[1], rows[3])] == [["10,000", "50%"]] * 3
    assert "It reaches 50% of the roofline" in shown.headline
    assert read or "its own bytes take 0.50 of the decode" in shown.verdict


def test_tables_without_a_trace(facts: MakeFacts) -> None:
    counted = profile(facts, read=None, watched=[WATCHED], counters={"cycles": 2e6})
    text = render(document(counted, "n_p=1", "a machine"), "table")
    assert "reading alone" not in text
    lines = [line.split() for line in text.splitlines()]
    assert ["aten::bmm", "2", "6,000", "60%"] in lines
    assert ["outside", "of", "operators", "3,000", "30%"] in lines
    assert "cycles 2e+06: a decode with warm caches" in text


def test_programs_get_the_facts(facts: MakeFacts) -> None:
    data = json.loads(render(document(profile(facts), "n_p=1", "a machine"), "json"))
    assert data["case"]["implementation"] == "chunk_attn"
    assert data["read"]["seconds"] == pytest.approx([0.006, 0.0054, 0.0066])
    assert data["decode"]["units"][0]["shared"] is True
    assert data["limits"][0].startswith("Neither reading nor computing")
    without = json.loads(render(document(profile(facts, read=None), "n_p=1", "a machine"), "json"))
    assert not {"decode", "read", "compute"} & without.keys()


def test_the_picture_has_a_timeline_and_the_roofline(facts: MakeFacts) -> None:
    with styled():
        picture = draw(profile(facts), "n_p=4096 n_s=3072 b=32, bfloat16 (an experiment)", "a machine with a long name")
    left, right = picture.axes
    assert left.get_xlim() == pytest.approx((0, 10))
    spots = sorted(tuple(line.get_xydata()[0]) for line in right.get_lines() if len(line.get_xdata()) == 1)
    assert [x for x, _ in spots] == pytest.approx([1, 7.4 / 1.2, 32])
    # Private chunks: 10 kFLOP in 13 ms of three threads; all: 74 in the decode; shared: 64 in 4 ms of three threads.
    assert [y for _, y in spots] == pytest.approx([1e-5 / (0.013 / 3), 7.4e-5 / 0.010, 6.4e-5 / (0.004 / 3)])
    check_inside(picture, _words(picture))
    names = [text.get_text() for text in picture.legends[0].get_texts()]
    assert names == ["shared chunks", "private chunks", "whole decode", "waiting for partial results"]


def test_without_a_trace_the_picture_is_the_roofline(facts: MakeFacts) -> None:
    with styled():
        picture = draw(profile(facts, read=None, read_bytes=(50_000_000,)), "n_p=4096", "a machine")
    (plot,) = picture.axes
    assert plot.get_xlabel() == "FLOP per byte"
    assert "above the line has read from caches" in " ".join(picture.texts[0].get_text().split())
    check_inside(picture, _words(picture))


@pytest.mark.parametrize(
    ("decode", "hidden"),
    [(11, 0), (12, 0), (9, 2), (6, 5), (5.5, 5)],  # more than both together; both; less; the longer one; less than that
)
def test_what_the_longer_part_hides(decode: float, hidden: float) -> None:
    both = Overlap(6, 5, decode)
    assert both.hideable_s == 5
    assert both.hidden_s == hidden


def test_computing_alone_counts_only_if_it_reads_from_a_cores_own_cache(facts: MakeFacts) -> None:
    assert overlap(profile(facts)) == pytest.approx((0.006, 0.005, 0.010))
    assert overlap(profile(facts, place_bytes=1 << 20)) is not None
    assert overlap(profile(facts, place_bytes=(1 << 20) + 1)) is None
    assert overlap(profile(facts).model_copy(update={"l2_bytes": None})) is None
    assert overlap(profile(facts, read=None)) is None


def test_the_trace_has_the_median_calls_as_processes_and_each_unit_on_its_thread(facts: MakeFacts) -> None:
    seen = profile(facts)
    written = json.loads(trace_json(seen, "a point", "a machine"))
    events = written["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["decode", "reading only", "computing only"]
    median = seen.decode[0]  # of 1.0, 0.9 and 1.1 times the decode
    units = [event for event in events if event["ph"] == "X" and event["pid"] == 0 and "args" in event]
    assert [(unit["tid"], unit["ts"] / 1e6, unit["dur"] / 1e6) for unit in units] == [
        (unit.thread, pytest.approx(unit.begin_s), pytest.approx(unit.end_s - unit.begin_s)) for unit in median.units
    ]
    assert [unit["name"] == "shared chunks" for unit in units] == [unit.shared for unit in median.units]
    waits = [event["dur"] / 1e6 for event in events if event["name"].startswith("waiting") and event["pid"] == 0]
    assert waits == [pytest.approx(each) for unit in median.units if (each := unit.ready_s - unit.begin_s) > 0]
    assert waits
    with pytest.raises(RunError, match="records no units of work"):
        trace_json(profile(facts, read=None), "a point", "a machine")
